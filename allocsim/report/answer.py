"""First screen of `replay`, `explain`, `tune` and `risk`: at most 22 lines of 80 columns.

The order is verdict, cause, setting to paste, and the code that holds the memory.  If they are too
long together, the least needed parts are left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from allocsim._repr import printable
from allocsim.report.layout import WIDTH, clipped, fields, paragraph, plural, row, shortened, warned
from allocsim.report.recommendation import paste_line, paste_notes
from allocsim.units import format_range, format_size

if TYPE_CHECKING:
    from allocsim.analysis.explain import Cure, DeviceExplanation
    from allocsim.analysis.top import Top
    from allocsim.editing import Saving
    from allocsim.recommend import Recommendation
    from allocsim.simulation import DeviceRun, Run

HEIGHT = 22
TABLES = "-v: every setting and figure; --json: the same for programs"
_SHOWN_DEVICES = 3
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
    """Lines of a screen that are shown or left out together.

    rank: parts with the highest number are left out first; a part with 0 is always shown.
    starts: True for an empty line before the part, if the screen has room.
    """

    lines: Sequence[str]
    tone: Tone = Tone.PLAIN
    rank: int = 0
    starts: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Lines that a command prints first, each with its visual style."""

    lines: tuple[tuple[str, Tone], ...]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line, _ in self.lines)


def answer_of(parts: Sequence[Part], more: str = _MORE) -> Answer:
    """Return a screen of `HEIGHT` lines that ends with `more`, without parts that do not fit."""
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


def owners_part(top: Top | None, rank: int = 0) -> Part:
    """Return the three largest owners of memory in `top`, and the largest categories."""
    if top is None or not top.rows:
        return Part(())
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
    return Part([*lines, *row("By category", ", ".join(shares))], rank=rank, starts=True)


def most_urgent(devices: Sequence[DeviceRun]) -> list[DeviceRun]:
    return sorted(devices, key=lambda device: not device.ooms)[:_SHOWN_DEVICES]


def warnings_part(run: Run) -> Part:
    shown = 2 if run.card is not None and run.card.is_shared else 1
    return said_first(run.warnings[:shown], run.named_notes)


def said_first(warnings: Sequence[str], notes: Sequence[str]) -> Part:
    from allocsim.replaying import OTHER_RELEASE  # noqa: PLC0415

    lines = warned(warnings)[:-1]  # without the empty line at the end
    other = [line for note in notes if note.endswith(OTHER_RELEASE) for line in row("Note", note)]
    return Part([*lines, *other], Tone.FAILURE if lines else Tone.PLAIN)


def device_prefix(run: Run, device: DeviceRun) -> str:
    return f"device {device.device}: " if len(run.devices) > 1 else ""


def hidden_devices(run: Run, shown: Sequence[DeviceRun]) -> Part:
    hidden = [device for device in run.devices if device not in shown]
    if not hidden:
        return Part(())
    failed = sum(bool(device.ooms) for device in hidden)
    what = f"{plural(failed, 'of them', 'of them')} out of memory" if failed else "none failed"
    return Part(row("", f"and {plural(len(hidden), 'more device')}: {what} (--device N shows one)"))


def entries(run: Run) -> str:
    if len(run.devices) == 1:
        (device,) = run.devices
        return f"{plural(device.entries, 'entry', 'entries')} of device {device.device}"
    entries = sum(device.entries for device in run.devices)
    return f"{plural(entries, 'entry', 'entries')} of {len(run.devices):,} devices"


def memory(run: Run, device: DeviceRun) -> list[str]:
    name = device_prefix(run, device)
    memory = device.device_memory
    card = "a device of unknown size" if memory is None else f"a device of {format_size(memory)}"
    peaks = (
        f"{name}{format_size(device.peak_reserved_bytes)} reserved at the peak on {card}, "
        f"{format_size(device.peak_allocated_bytes)} allocated"
    )
    low, high = map(format_size, device.peak_range)
    if low != high:
        peaks += f"; {low} to {high}, depending on unrecorded calls"
    return row("Memory", peaks)


def to_paste(
    found: Recommendation | None, devices: Iterable[Cure | DeviceExplanation] = ()
) -> list[Part]:
    """Return the setting to paste, and sentences that say if a replay proved that it helps."""
    if found is None:
        return []
    lines = paste_line(found)
    tone = Tone.PLAIN if found.best is None else Tone.PASTE
    notes = " ".join(paste_notes(found, devices))
    return [Part(lines, tone, starts=True), Part(paragraph(notes) if notes else ())]


def savings_part(savings: Sequence[Saving], missing: int | None = None) -> Part:
    """Return lines with changes of the program that save memory, and the bytes that each saves.

    missing: bytes that the failed request lacks; None if unknown.
    """
    if not savings:
        return Part(())
    head = "estimates of what each change saves then, from the categories"
    if missing is not None:
        head = f"{format_size(missing)} less, by one change or several (estimates):"
    lines = row("To fit", head)
    for each in savings:
        enough = ", enough" if each.is_enough else ""
        figures = "a replay serves every request"
        if each.low_bytes is not None and each.high_bytes is not None:
            figures = format_range(each.low_bytes, each.high_bytes)
        lines.append(clipped(f"{figures:>26}  {each.change}{enough}", WIDTH))
    return Part(lines, starts=True)


def savings_document(savings: Sequence[Saving]) -> list[dict[str, Any]]:
    keys = "change low_bytes high_bytes is_enough is_proved"
    return [fields(each, keys) for each in savings]
