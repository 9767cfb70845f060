"""Releases of transformers: which laws are meant by a version of it.

Rule: a release from which on some program makes other requests than before is a row; a program's
laws are those of the last row, not later than the release that is meant, that has a file for it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from allocsim.errors import ConfigError

__all__ = ["TRANSFORMERS", "installed_transformers", "numbers_of", "transformers_release"]

TRANSFORMERS = ("5.23", "5.24")
"""The first is that of `traces/fit/truth.jsonl`.  5.24 keeps the values of a cache in their own
dtype under autocast, and builds the masks of one sequence, packed or not, in another order."""


def installed_transformers() -> str | None:
    """The version that this Python would import; None where it has none."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def transformers_release(meant: str | None = None) -> str:
    """The row of `TRANSFORMERS` for a version, as "5.24.1" (default: the one installed, else the
    first row).

    Before the first row it is the first, which `fit` says.  Raises ConfigError for what is no
    version.
    """
    text = installed_transformers() or TRANSFORMERS[0] if meant is None else meant
    upto = [each for each in TRANSFORMERS if numbers_of(each) <= numbers_of(text)]
    return max(upto, key=numbers_of, default=TRANSFORMERS[0])


def numbers_of(text: str) -> tuple[int, int]:
    """The first two numbers of a version.  Raises ConfigError for what is none."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        raise ConfigError(f"{text!r} is no version of transformers; expected one as 5.24")
    return int(major), int(minor)
