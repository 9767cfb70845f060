"""The releases that an error's text can come from: those that are modelled, and those before.

Rule: what a modelled release has is read from the model's own table, so that a new row there needs
none here; `EARLIER` has the releases before.  But for `wording.py`, which dates texts, no other
module knows releases older than those that are modelled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from allocsim.core import NEWEST, RELEASES, Release, find_release
from allocsim.errors import ConfigError

__all__ = ["TextRelease", "text_release"]

EARLIER: tuple[tuple[str, tuple[str, ...]], ...] = (("1.0", ()), ("1.10", ("max_split_size_mb",)))
"""Releases before the first that is modelled, and the options of the advice that came with them."""

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")


@dataclass(frozen=True, slots=True)
class TextRelease:
    """What the advice needs to know of a release.

    rules: how it reads an option string; a release older than the model has those of its first.
    options: those that it has.
    prints_limit: whether its text says how much a limit allows.
    """

    rules: Release
    options: frozenset[str]
    prints_limit: bool


def text_release(version: str) -> TextRelease:
    """The release of "1.13" or "2.9.1".  Raises ConfigError where there is none."""
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
