"""Releases that an error's text can come from: the modelled ones, and earlier ones.

The properties of modelled releases come from the model's table; `EARLIER` has the earlier releases.
Apart from `wording.py`, which dates texts, no other module knows releases older than the modelled
ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from allocsim.core import NEWEST, RELEASES, Release, find_release
from allocsim.errors import ConfigError

__all__ = ["TextRelease", "text_release"]

EARLIER: tuple[tuple[str, tuple[str, ...]], ...] = (("1.0", ()), ("1.10", ("max_split_size_mb",)))
"""(release, options) before the first modelled release.

Options are those that the release introduced and that the advice may name.
"""

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")


@dataclass(frozen=True, slots=True)
class TextRelease:
    """Properties of a release that the advice depends on.

    rules: modelled release that parses a conf; the oldest if the release itself is not modelled.
    options: names of the options that the release has.
    prints_limit: True if the error text of the release prints the limit.
    """

    rules: Release
    options: frozenset[str]
    prints_limit: bool


def text_release(version: str) -> TextRelease:
    """Return the properties of a release such as "1.13" or "2.9.1".

    Raises ConfigError if there is no such release.
    """
    number = _number(version)
    if number is None:
        raise ConfigError(
            f"torch version {version[:80]!r} is not a release; expected {EARLIER[0][0]} to {NEWEST}"
        )
    first = next(iter(RELEASES.values()))
    if number >= (_number(first.version) or ()):
        rules = find_release(version)
        return TextRelease(rules, rules.options, "{limit}" in rules.oom_text)
    options = [new for since, new in EARLIER if (_number(since) or ()) <= number]
    return TextRelease(first, frozenset().union(*options), prints_limit=False)


def _number(version: str) -> tuple[int, ...] | None:
    found = _VERSION.match(version)
    return None if found is None else (int(found[1]), int(found[2]))
