"""Recognition of the figures in out-of-memory texts.

The words next to a size say which figure it is.  Words before it that end in a colon, "of" or
similar have precedence over words after it, and these over other words before it.  If a figure
occurs several times, the first one counts.  A number without a unit is a size only after words and
a colon.

Units are powers of two, with or without the "i": PyTorch prints no others, and Apple's older texts
write GB for GiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from allocsim.analysis.explain.cause import Figures
from allocsim.analysis.explain.wording import AFTER, BEFORE

__all__ = ["Reading", "read_figures", "sizes_in"]

_SIZE = re.compile(
    r"(?<![\w.,/-])(?P<digits>\d{1,3}(?:,\d{3}){1,8}|\d{1,24})(?P<decimals>[.,]\d{1,12})?"
    r"(?:\s?(?P<unit>bytes?|[kmgtpe]i?b?|b)(?![\w%/]))?(?![\d.]*\d|/)",
    re.IGNORECASE | re.ASCII,
)
_SHIFT = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_BESIDE = 100  # characters before and after a size that are searched for its name
_SHORT = 40  # characters before a size that are searched for a colon
_FARTHEST = 400  # largest number of characters between two sizes of one error
_ENDING = re.compile(
    r"if reserved|see documentation|please use|memory summary|traceback \(|time taken",
    re.IGNORECASE,
)
"""Words after the last size of an error; later sizes do not belong to the error."""

_UNSET = 1 << 64  # printed value of an unset limit


def _either(rows: tuple[tuple[str, str], ...]) -> str:
    return "|".join(f"(?P<{figure}_{i}>{words})" for i, (figure, words) in enumerate(rows))


_FLAGS = re.IGNORECASE | re.ASCII
_JOINED = re.compile(
    rf"(?<![\w-])(?:{_either(BEFORE)})['\"]?(?:\s*[:=]\s*| (?:is|of|was|has|at) )['\"~]?\Z", _FLAGS
)
_CONNECTED = re.compile(r"(?:[:=]\s*|\s(?:is|of|was|has|at)\s)['\"~]?\Z", _FLAGS)
"""Colon or verb before a size; a cheap test before `_JOINED`, since most sizes have none."""

_TOUCHING = re.compile(
    rf"(?<![\w-])(?:{_either(BEFORE)})\s+(?:(?:about|approximately|a|of)\s+)?\Z", _FLAGS
)
_FOLLOWING = re.compile(
    rf"\s*(?:(?:is|are|was|has been|of|memory)\s+)*(?:{_either(AFTER)})", _FLAGS
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Sizes that were recognised in one text.

    others: (process id, bytes) of other processes.
    count: number of recognised sizes.
    end: position of the end of the last size.
    understood: number of characters in the words that name the sizes.
    """

    figures: Figures
    others: tuple[tuple[int, int], ...]
    count: int
    end: int
    understood: int


def sizes_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield (position, bytes) of every number in `text` that has a unit."""
    for match in _SIZE.finditer(text):
        if match["unit"]:
            yield match.start(), _bytes(match)


def read_figures(text: str) -> Reading:
    """Return the sizes in `text`, the words of one error.  A second request ends the error."""
    found: dict[str, int] = {}
    others: list[tuple[int, int]] = []
    end = understood = 0
    ending = _ENDING.search(text)
    last = ending.start() if ending else len(text)
    for figure, match, words in _named(text):
        size = _bytes(match)
        if end and (match.start() - end > _FARTHEST or match.start() > last):
            break
        if figure == "tried" and found.get("tried", size) != size:
            break
        end = match.end()
        understood += len(words)
        if figure == "others":
            others.append((int(re.sub(r"\D", "", words.split("(")[0]) or 0), size))
        else:
            found.setdefault(figure, size)
    count = len(found) + len(others)
    return Reading(_figures(found, others), tuple(others), count, end, understood)


def _named(text: str) -> Iterator[tuple[str, re.Match[str], str]]:
    """Yield (name, match of the size, words that name it) of every size with a known name."""
    for match in _SIZE.finditer(text):
        before = text[max(0, match.start() - _BESIDE) : match.start()]
        beside = _JOINED.search(before) if _CONNECTED.search(before[-_SHORT:]) else None
        if beside is None and match["unit"]:
            after = text[match.end() : match.end() + _BESIDE]
            beside = _FOLLOWING.match(after) or _TOUCHING.search(before)
        if beside is not None and beside.lastgroup is not None:
            yield beside.lastgroup.partition("_")[0], match, beside[0]


def _figures(found: dict[str, int], others: list[tuple[int, int]]) -> Figures:
    limit = found.get("limit")
    process = found.get("process")
    if process is None and "rest" in found and "allocated" in found:
        process = found["allocated"] + found["rest"]
    if process is None and others:
        process = _own(found, [size for _, size in others])
    names = ("tried", "total", "allocated", "reserved", "idle", "free", "pool")
    return Figures(
        **{f"{name}_bytes": found.get(name) for name in names},
        limit_bytes=None if limit is not None and limit >= _UNSET else limit,
        process_bytes=process,
        printed=True,
    )


def _own(found: dict[str, int], sizes: list[int]) -> int | None:
    """Return the bytes of this process, guessed from the sizes of the listed processes.

    In a container the driver's process ids differ from the program's, so the smallest process that
    holds at least PyTorch's memory is taken.
    """
    held = found.get("reserved", found.get("allocated", 0) + found.get("idle", 0))
    return min((size for size in sizes if size >= held), default=max(sizes))


def _bytes(match: re.Match[str]) -> int:
    digits = match["digits"].replace(",", "")
    decimals = (match["decimals"] or "")[1:]
    shift = _SHIFT.get((match["unit"] or "b")[0].lower(), 0)
    return (int(digits + decimals) << shift) // int("1" + "0" * len(decimals))
