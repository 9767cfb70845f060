"""The first screen of `replay`, `explain`, `tune` and `risk`, on 24 lines of 80 columns.

Verdict, cause, line to paste, owners; `compare`, `gate`, `ranks` and `top` lay out their own.

Rule: what does not fit is left out whole, the least needed first, never cut in the middle; the
last line says how to see the rest.  A tone says what a line is; colours are the terminal's matter.
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
    from allocsim.questions.top import Top

__all__ = ["HEIGHT", "Answer", "Part", "Tone", "answer_of", "of_owners", "part"]

HEIGHT = 24
_MORE = "-v: everything else; --json: the same for programs"
_OWNERS, _CATEGORIES, _INDENT = 3, 4, 4
_LEAST_WORDS = 12
"""Columns of a category; less of it tells nothing."""


class Tone(StrEnum):
    """What a line is."""

    PLAIN = "plain"
    GOOD = "good"
    """A verdict that nothing is wrong."""
    FAILURE = "failure"
    """A verdict that something failed, a warning, a proof that does not hold."""
    PASTE = "paste"
    """The line to paste."""


@dataclass(frozen=True, slots=True)
class Part:
    """Lines that stand together.

    rank: what is left out first where there is no room is what ranks highest; 0 always stays.
    starts: whether an empty line goes before it, where there is room for all of these.
    """

    lines: tuple[str, ...]
    tone: Tone = Tone.PLAIN
    rank: int = 0
    starts: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Lines with their tones."""

    lines: tuple[tuple[str, Tone], ...]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line, _ in self.lines)


def part(
    lines: Iterable[str], tone: Tone = Tone.PLAIN, rank: int = 0, *, starts: bool = False
) -> Part:
    """A part of these lines."""
    return Part(tuple(lines), tone, rank, starts)


def answer_of(parts: Sequence[Part], more: str = _MORE) -> Answer:
    """The screen.  more: its last line."""
    kept = [each for each in parts if each.lines]
    while _height(kept) > HEIGHT and (ranks := [each.rank for each in kept if each.rank]):
        # Of equals the last goes: the screen is in the order of need.
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
    """Who held the memory: the three largest lines, and what it was for."""
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
