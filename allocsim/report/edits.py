"""Effect of edits of the program on the memory of a recording, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from allocsim.editing import EditedDevice, EditTrial
from allocsim.report.layout import number, row
from allocsim.simulation import DeviceRun, Run
from allocsim.units import format_change, format_size


def edit_rows(devices: Sequence[EditedDevice], run: Run) -> list[str]:
    """Return lines with each edit, its effect on the peaks, its code and its assumptions."""
    lines: list[str] = []
    for edit in devices[0].edits:
        lines += row("Edit", edit.text)
        lines += row("", f"code: {edit.code}")
    for edited, device_run in zip(devices, run.devices, strict=True):
        name = f"device {device_run.device}: " if len(run.devices) > 1 else ""
        lines += row("Effect", f"{name}{_effect(edited, device_run)}")
    said = dict.fromkeys(edit.assumes for edit in devices[0].edits)
    return lines + row("Assumed", "; ".join(said))


def _effect(edited: EditedDevice, device_run: DeviceRun) -> str:
    before = edited.baseline.peak_reserved_bytes
    after = device_run.peak_reserved_bytes
    change = f"{format_size(abs(after - before))} {'more' if after > before else 'less'}"
    if after == before:
        change = "as much"
    text = f"{format_size(after)} reserved at the peak, {change} than without the edit"
    calls = _calls(device_run) - _calls(edited.baseline)
    if calls:
        text += f"; {number(abs(calls))} {'more' if calls > 0 else 'fewer'} driver calls"
    return text.replace("as much than", "as much as")


def _calls(device_run: DeviceRun) -> int:
    return sum(count for _, _, count in device_run.driver_calls)


def edit_document(devices: Sequence[EditedDevice]) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each edit, with the recorded program's peak on each device."""
    for edit in devices[0].edits:
        yield {
            "edit": edit.text,
            "code": edit.code,
            "assumes": edit.assumes,
            "peak_reserved_bytes_without": [each.baseline.peak_reserved_bytes for each in devices],
        }


def tried_edit_rows(tried: Sequence[EditTrial], most: int) -> list[str]:
    """Return up to `most` lines, one for each of the best edits: peak, change of the peak, code."""
    lines: list[str] = []
    for trial in tried[:most]:
        (edit,) = trial.devices[0].edits
        before = max(each.baseline.peak_reserved_bytes for each in trial.devices)
        peak = f"{format_size(trial.peak_reserved_bytes)} reserved at the peak"
        change = format_change(trial.peak_reserved_bytes - before)
        failed = "" if trial.is_whole else ", and a request fails"
        lines += row("" if lines else "Edits", f"{edit.text}: {peak} ({change}){failed}")
        place = f"; in the loop at {trial.place}" if trial.place else ""
        lines += row("", f"  {edit.code}{place}")
    return lines + row("", "Each assumes that all requests stay the same; --edit EDIT shows one.")


def tried_edits_document(tried: Sequence[EditTrial]) -> list[dict[str, Any]]:
    """Return the JSON objects of the edits, the best first."""
    return [
        {
            **next(edit_document(trial.devices)),
            "place": trial.place,
            "peak_reserved_bytes": trial.peak_reserved_bytes,
            "is_whole": trial.is_whole,
        }
        for trial in tried
    ]
