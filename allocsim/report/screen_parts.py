"""Parts of first screens: warnings, several devices, memory, the line to paste.

Rule: every sentence of a first screen is also in the full text, which -v prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from allocsim.recommend import Recommendation
from allocsim.replaying import OTHER_RELEASE
from allocsim.report.answer import Part, Tone, part
from allocsim.report.layout import number, paragraph, plural, row, warned
from allocsim.report.recommendation import paste_line, paste_notes
from allocsim.simulation import DeviceRun, Run
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.explain import Cure, DeviceExplanation

__all__ = [
    "TABLES", "entries", "memory", "most_urgent", "named", "others", "said_first", "to_paste",
    "warnings",
]  # fmt: skip

TABLES = "-v: every setting and figure; --json: the same for programs"
_SHOWN_DEVICES = 3


def most_urgent(devices: Sequence[DeviceRun]) -> list[DeviceRun]:
    """Return at most three devices: those with errors first, then in the recording's order."""
    return sorted(devices, key=lambda device: not device.ooms)[:_SHOWN_DEVICES]


def warnings(run: Run) -> Part:
    """Return warnings that the replay differs from the recorded run, or from its release."""
    shown = 2 if run.card is not None and run.card.is_shared else 1
    return said_first(run.warnings[:shown], run.named_notes)


def said_first(warnings: Sequence[str], notes: Sequence[str]) -> Part:
    lines = warned(warnings)[:-1]
    other = [line for note in notes if note.endswith(OTHER_RELEASE) for line in row("Note", note)]
    return part([*lines, *other], Tone.FAILURE if lines else Tone.PLAIN)


def named(label: str, run: Run, device: DeviceRun) -> tuple[str, str]:
    """Return `label` and "device N: "; the second text is empty if `run` has one device."""
    return label, f"device {device.device}: " if len(run.devices) > 1 else ""


def others(run: Run, shown: Sequence[DeviceRun]) -> Part:
    """Return a line with the number of devices that are not in `shown`, and of errors on them."""
    hidden = [device for device in run.devices if device not in shown]
    if not hidden:
        return part(())
    failed = sum(bool(device.ooms) for device in hidden)
    what = f"{plural(failed, 'of them', 'of them')} out of memory" if failed else "none failed"
    return part(row("", f"and {plural(len(hidden), 'more device')}: {what} (--device N shows one)"))


def entries(run: Run) -> str:
    if len(run.devices) == 1:
        (device,) = run.devices
        return f"{plural(device.entries, 'entry', 'entries')} of device {device.device}"
    entries = sum(device.entries for device in run.devices)
    return f"{plural(entries, 'entry', 'entries')} of {number(len(run.devices))} devices"


def memory(run: Run, device: DeviceRun) -> list[str]:
    _, name = named("", run, device)
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
    """Return the setting to paste, and sentences on what the replays prove about it.

    devices: as in `paste_notes`.
    """
    if found is None:
        return []
    lines = paste_line(found)
    tone = Tone.PLAIN if found.best is None else Tone.PASTE
    notes = " ".join(paste_notes(found, devices))
    return [part(lines, tone, starts=True), part(paragraph(notes) if notes else ())]
