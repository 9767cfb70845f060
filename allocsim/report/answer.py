"""First screen of `replay`, `explain`, `tune` and `risk`: at most 22 lines of 80 columns.

The order is verdict, cause, setting to paste, and the code that holds the memory. Two lines of a
terminal of 24 are left for the prompts. `compare`, `gate`, `ranks` and `top` have other layouts.

Rule: a part that does not fit is left out completely, the least needed first. The last line names
the options that show the rest.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from allocsim.report.layout import WIDTH, printable, row, shortened
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top

__all__ = ["HEIGHT", "Answer", "Part", "Tone", "answer_of", "of_owners", "part"]

HEIGHT = 22
_MORE = "-v: everything else; --json: the same for programs"
_OWNERS, _CATEGORIES, _INDENT = 3, 4, 4
_LEAST_WORDS = 12
"""Fewest columns for a category; less is not readable."""


class Tone(StrEnum):
    """Visual style of an output line; `cli/output.py` has the colour of each style."""

    PLAIN = "plain"
    GOOD = "good"
    """Verdict that nothing is wrong."""
    FAILURE = "failure"
    """Verdict of a failure, a warning, or a proof that does not hold."""
    PASTE = "paste"
    """Line to paste."""


@dataclass(frozen=True, slots=True)
class Part:
    """Lines that are shown or left out together.

    rank: parts with the highest number are left out first; a part with 0 is always shown.
    starts: put an empty line before the part, if the screen has room for all such empty lines.
    """

    lines: tuple[str, ...]
    tone: Tone = Tone.PLAIN
    rank: int = 0
    starts: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """First screen of a command: pairs of line and tone."""

    lines: tuple[tuple[str, Tone], ...]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line, _ in self.lines)


def part(
    lines: Iterable[str], tone: Tone = Tone.PLAIN, rank: int = 0, *, starts: bool = False
) -> Part:
    return Part(tuple(lines), tone, rank, starts)


def answer_of(parts: Sequence[Part], more: str = _MORE) -> Answer:
    """Return a screen of the parts that fit in `HEIGHT` lines; `more` is its last line."""
    kept = [each for each in parts if each.lines]
    while _height(kept) > HEIGHT and (ranks := [each.rank for each in kept if each.rank]):
        # Of parts with equal rank, the last is removed first, since the most needed part is first.
        last = max(i for i, each in enumerate(kept) if each.rank == max(ranks))
        del kept[last]
    room = HEIGHT - _height(kept)
    starts = [each for each in kept[1:] if each.starts]
    lines: list[tuple[str, Tone]] = []
    for each in kept:
        gaps = room >= len(starts) + 1 and each in starts
        lines += [("", Tone.PLAIN)] * gaps
        lines += [(line, each.tone) for line in each.lines]
    lines += [("", Tone.PLAIN)] * (room >= len(starts) + 1)
    return Answer((*lines, (more, Tone.PLAIN)))


def _height(parts: Sequence[Part]) -> int:
    return sum(len(each.lines) for each in parts) + 1


def of_owners(top: Top | None, rank: int = 0) -> Part:
    """Return the allocated memory by line of code (the three largest) and by category.

    rank: as in `Part`.
    """
    if top is None or not top.rows:
        return part(())
    when = "at the error" if top.at.what == "oom" else f"at the {top.at.what}"
    if top.at.what == "entry":
        when = f"after entry {top.at.entry or 0:,}"
    total = max(top.allocated_bytes, 1)
    lines = row("Held by", f"{format_size(top.allocated_bytes)} allocated {when}:")
    for each in top.rows[:_OWNERS]:
        figures = f"{'':{_INDENT}}{format_size(each.bytes):>11} {each.bytes / total:4.0%}  "
        line = figures + shortened(printable(each.owner), WIDTH - len(figures))
        room = WIDTH - len(line) - len(": ")
        if room >= _LEAST_WORDS and each.category != each.owner:
            line += f": {textwrap.shorten(each.category, room, placeholder=' …')}"
        lines.append(line)
    largest = list(top.categories.items())[:_CATEGORIES]
    shares = (f"{name} {size / total:.0%}" for name, size in largest if size * 200 >= total)
    return part([*lines, *row("By category", ", ".join(shares))], rank=rank, starts=True)
