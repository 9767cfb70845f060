"""Releases of transformers for which there are laws.

Rule: `TRANSFORMERS` lists each release that changed a program's requests. The laws of a program are
    in the folder of the last listed release that has a file for the program and is not later than
    the intended release.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from allocsim.errors import ConfigError

__all__ = ["TRANSFORMERS", "installed_transformers", "numbers_of", "transformers_release"]

TRANSFORMERS = ("5.23", "5.24")
"""Releases with laws. The first is the release that `traces/fit/truth.jsonl` was recorded with.

Under autocast, 5.24 keeps the values of a cache in their own dtype. It builds the masks of a single
sequence, packed or not, in another order.
"""


def installed_transformers() -> str | None:
    """Return the version of transformers in this Python, or None."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def transformers_release(meant: str | None = None) -> str:
    """Return the entry of `TRANSFORMERS` that covers a version such as "5.24.1".

    meant: the version; default: the installed version, else the first entry.

    Versions before the first entry use the first entry, which `fit` notes. Raises ConfigError for
    text that is not a version.
    """
    text = installed_transformers() or TRANSFORMERS[0] if meant is None else meant
    upto = [each for each in TRANSFORMERS if numbers_of(each) <= numbers_of(text)]
    return max(upto, key=numbers_of, default=TRANSFORMERS[0])


def numbers_of(text: str) -> tuple[int, int]:
    """Return the major and minor number of a version. Raises ConfigError for any other text."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        raise ConfigError(
            f"{text!r} is not a version of transformers; expected a version such as 5.24"
        )
    return int(major), int(minor)
