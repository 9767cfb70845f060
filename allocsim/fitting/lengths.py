"""Lengths of sequences, read from a file or drawn from a distribution.

Rule: the same text gives the same lengths. Drawn lengths are written into the generated program.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from allocsim.errors import ConfigError

__all__ = ["lengths_of"]

_DRAWN = re.compile(r"(uniform|lognormal):(\d{1,8}):(\d{1,8}(?:\.\d+)?)")
_MOST = 100_000
_LONGEST = 1 << 24
_BYTES = 1 << 22


def lengths_of(text: str, count: int) -> tuple[int, ...]:
    """Return `count` lengths in tokens from a distribution, or all lengths in a file.

    text: "uniform:LOW:HIGH", "lognormal:MEDIAN:SIGMA" (SIGMA of the logarithm), or the name of a
        file of whole numbers.

    Raises ConfigError for any other text.
    """
    found = _DRAWN.fullmatch(text)
    if found is None:
        return _in_file(Path(text))
    chance, low, high = random.Random(0), int(found[2]), float(found[3])
    if found[1] == "uniform":
        if not 1 <= low <= high:
            raise ConfigError(f"lengths {text}: expected uniform:LOW:HIGH, 1 or more, LOW first")
        return tuple(chance.randint(low, int(high)) for _ in range(count))
    if not low or not 0 <= high <= 10:
        raise ConfigError(f"lengths {text}: expected lognormal:MEDIAN:SIGMA, SIGMA from 0 to 10")
    drawn = (round(low * chance.lognormvariate(0.0, high)) for _ in range(count))
    return tuple(min(max(length, 1), _LONGEST) for length in drawn)


def _in_file(file: Path) -> tuple[int, ...]:
    try:
        with file.open("rb") as opened:
            words = opened.read(_BYTES).split()
    except (OSError, ValueError):
        raise ConfigError(
            f"lengths {str(file)[:80]!r}: expected a file of whole numbers, uniform:LOW:HIGH or "
            "lognormal:MEDIAN:SIGMA"
        ) from None
    if not 0 < len(words) <= _MOST or not all(word.isdigit() and len(word) < 9 for word in words):
        raise ConfigError(
            f"{file}: expected 1 to {_MOST:,} lengths, whole numbers with space between"
        )
    return tuple(map(int, words))
