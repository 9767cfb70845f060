"""Result of `allocsim replay` (input, proof, memory, verdict): full text, JSON, short answer.

The proof is the comparison of the replay with the recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from allocsim.analysis.explain import Cure, Shortage
from allocsim.core import find_release, parse_conf
from allocsim.recommend import Recommendation
from allocsim.replaying import Trial
from allocsim.report.answer import (
    Answer,
    Part,
    Tone,
    answer_of,
    device_prefix,
    entries,
    hidden_devices,
    memory,
    most_urgent,
    owners_part,
    paste_rows,
    peak_text,
    recommendation_document,
    to_paste,
    trial_document,
    warnings_part,
)
from allocsim.report.layout import (
    card_document,
    earlier_errors,
    exact_size,
    fields,
    known_text,
    paragraph,
    parting_document,
    plural,
    row,
    rows,
    table,
    warned,
)
from allocsim.report.run_sections import (
    driver_document,
    driver_rows,
    edit_document,
    edit_rows,
    verdict_sentence,
)
from allocsim.report.spill import spill_document, spill_rows
from allocsim.simulation import DeviceRun, PeakState, Run, Start, StartPeaks, TimelinePoint
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top
    from allocsim.editing import EditedDevice

_SHOWN_OOMS = 3
_PEAK = (
    "entry reserved_bytes=reserved allocated_bytes=allocated active_bytes=active idle_bytes=idle "
    "inactive_split_bytes=inactive_split"
)

Found = tuple[Recommendation, tuple[Cure, ...]]
"""Recommended setting, and for each device the replays under the settings that were tried."""


def text(
    run: Run,
    shortages: Mapping[int, Sequence[Shortage]],
    found: Found | None = None,
    top: Top | None = None,
    edited: Sequence[EditedDevice] = (),
) -> str:
    """Return the text of `allocsim replay -v`.

    shortages: dictionary from a device number to its out-of-memory errors.
    found: recommended setting and the settings tried; None if the command did not search for one.
    top: lines of code that held the memory; None if unknown.
    edited: devices of an edited program; empty for the recorded program.
    """
    cures = {} if found is None else {cure.device: cure for cure in found[1]}
    lines = [*warned(run.warnings), *_heading(run), ""]
    lines += [*edit_rows(edited, run), ""] if edited else []
    for device in run.devices:
        if len(run.devices) > 1:
            lines += [f"== device {device.device} ==", ""]
        ooms = shortages.get(device.device, ())
        for section in (
            [] if edited else _proof_rows(device),
            _memory(run, device),
            spill_rows(device),
            _ooms(ooms),
            row("Verdict", verdict_sentence(device, ooms)),
            _cured(cures[device.device]) if device.device in cures else [],
        ):
            lines += [*section, ""] if section else []
    if found is not None:
        lines += [*paste_rows(*found), ""]
    if top is not None:
        lines += [*owners_part(top).lines, ""]
    return "\n".join(lines)


def _heading(run: Run) -> list[str]:
    entries = ", ".join(
        f"{plural(device.entries, 'entry', 'entries')} of device {device.device}"
        for device in run.devices
    )
    name = "device {}: " if len(run.devices) > 1 else ""
    memories = (
        name.format(device.device)
        + ("unknown" if device.device_memory is None else exact_size(device.device_memory))
        for device in run.devices
    )
    lines = [*row("Recording", run.path), *row("", entries)]
    lines += row("Settings", run.conf or "none: PyTorch's defaults")
    return lines + rows("Device memory", memories) + rows("Notes", run.named_notes)


NOTHING_RECORDED = "none: the file holds requests only, without addresses or segments to compare"


def _proof_rows(device: DeviceRun) -> list[str]:
    fidelity = device.fidelity
    if fidelity is None:
        return row(
            "Proof",
            "none: the settings or the device memory differ from the recorded ones, so there is "
            "nothing to compare",
        )
    if not fidelity.is_compared:
        return row("Proof", NOTHING_RECORDED)
    compared = (
        (fidelity.addresses_matched, fidelity.allocations, "addresses"),
        (fidelity.segments_matched, fidelity.segments, "segments"),
        (fidelity.entries_matched, fidelity.entries, "entries"),
    )
    found = [f"{n:,} of {total:,} {noun} as recorded" for n, total, noun in compared]
    no = "" if fidelity.addresses_matched == fidelity.allocations else "NOT "
    lines = rows("Proof", [*found, f"{no}all addresses as recorded"])
    mismatch = fidelity.first_mismatch
    if mismatch is not None:
        where = "in the final segments"
        if mismatch.entry is not None:
            where = f"at entry {mismatch.entry:,}"
        lines += row("", f"the first difference is {where}:")
        lines += row("  recorded", mismatch.expected)
        lines += row("  replayed", mismatch.got)
    return lines


def _memory(run: Run, device: DeviceRun) -> list[str]:
    peak = device.peak
    is_expandable = parse_conf(run.conf, find_release(run.torch_version)).expandable_segments
    since = "present at the start" if peak.entry < 0 else f"first at entry {peak.entry:,}"
    return [
        *row("Peak reserved", f"{exact_size(device.peak_reserved_bytes)}, {since}"),
        *(_range(device.peaks) if device.peaks is not None else []),
        *row("Peak allocated", exact_size(device.peak_allocated_bytes)),
        *rows(
            "Unused",
            [*least_and_most(device), *(_unused_at_peak(peak, is_expandable) if peak.idle else [])],
        ),
        *driver_rows(device, is_expandable),
    ]


_BEGINS = {
    Start.KEPT: "with the initial segments kept",
    Start.REALLOCATED: "with the live blocks allocated again",
}


def _range(peaks: StartPeaks) -> list[str]:
    if peaks.kept is None or peaks.anew is None:
        return row("", f"{_BEGINS[peaks.shown]}; the other way to start has no figure")
    other = Start.REALLOCATED if peaks.shown is Start.KEPT else Start.KEPT
    text = (
        f"from {format_size(peaks.low)} to {format_size(peaks.high)}: the figures are for a start "
    )
    return row("", f"{text}{_BEGINS[peaks.shown]}, the other end is for one {_BEGINS[other]}")


def least_and_most(device: DeviceRun) -> list[str]:
    busiest, idlest = device.timeline.busiest, device.timeline.idlest
    if busiest is None or idlest is None:
        return []
    texts = [f"{format_size(busiest.idle)} at peak allocation{_after(busiest)}"]
    if idlest.idle > busiest.idle:
        texts.append(f"{format_size(idlest.idle)} at most{_after(idlest)}")
    return texts


def _after(moment: TimelinePoint) -> str:
    return f", after entry {moment.entry:,}" if moment.entry >= 0 else ", at the start"


def _unused_at_peak(peak: PeakState, is_expandable: bool) -> list[str]:
    where = "at the peak of reserved memory"
    if is_expandable:
        # PyTorch counts no inactive splits in expandable segments, so idle memory is one kind.
        return [f"{where}: {format_size(peak.idle)} inside expandable segments"]
    whole, split = format_size(peak.whole_segments), format_size(peak.inactive_split)
    return [
        f"{where}: {whole} in wholly free segments (empty_cache() returns them)",
        f"and {split} between blocks in use (inactive splits)",
    ]


def _ooms(shortages: Sequence[Shortage]) -> list[str]:
    lines: list[str] = []
    for shortage in shortages[-_SHOWN_OOMS:]:
        oom = shortage.oom
        says = "; PyTorch's message:" if oom.message else ""
        lines += row("Out of memory", f"at entry {oom.entry:,}, {known_text(oom)}{says}")
        lines += paragraph(oom.message, indent=4)
    return lines + earlier_errors(len(shortages) - _SHOWN_OOMS)


def document(
    run: Run,
    shortages: Mapping[int, Sequence[Shortage]],
    found: Found | None = None,
    top: Top | None = None,
    edited: Sequence[EditedDevice] = (),
) -> dict[str, Any]:
    """Return the document of `allocsim replay --json`; the parameters are those of `text`."""
    cures = {} if found is None else {cure.device: cure for cure in found[1]}
    recommendation = {} if found is None else {"recommendation": recommendation_document(found[0])}
    return {
        **fields(run, "file=path conf torch_version device_memory"),
        "card": card_document(run.card),
        "notes": [*run.warnings, *run.notes],
        "devices": [
            _device(each, shortages.get(each.device, ()), cures.get(each.device))
            | _spill(each, top)
            for each in run.devices
        ],
        **recommendation,
        **({"edits": list(edit_document(edited))} if edited else {}),
    }


def _spill(device: DeviceRun, top: Top | None) -> dict[str, Any]:
    if device.spill is None:
        return {}
    owners = top if top is not None and top.device == device.device else None
    return {"spill": spill_document(device, device.spill, owners)}


def _device(device: DeviceRun, shortages: Sequence[Shortage], cure: Cure | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        **fields(device, "device entries peak_allocated_bytes peak_reserved_bytes"),
        "peak": fields(device.peak, _PEAK),
        "busiest": _moment(device.timeline.busiest),
        "idlest": _moment(device.timeline.idlest),
        "stats": device.stats,
        "ooms": [_oom(shortage) for shortage in shortages],
        "stopped_at": device.stopped_at,
        "fidelity": None,
        "notes": list(device.notes),
        "parting": parting_document(device.parting),
        **driver_document(device),
    }
    if (found := device.fidelity) is not None and found.is_compared:
        document["fidelity"] = {**asdict(found), "is_exact": found.is_exact}
    if (peaks := device.peaks) is not None:
        sizes = fields(peaks, "kept_bytes=kept anew_bytes=anew")
        document["peak_reserved_range"] = {"start": str(peaks.shown), **sizes}
    if device.peaks_left_open is not None:
        document["peak_reserved_left_open"] = list(device.peaks_left_open)
    if cure is not None:
        document["cure"] = _cure(cure)
    return document


def _moment(moment: TimelinePoint | None) -> dict[str, int] | None:
    keys = "entry allocated_bytes=allocated reserved_bytes=reserved idle_bytes=idle"
    return None if moment is None else fields(moment, keys)


def _oom(shortage: Shortage) -> dict[str, Any]:
    keys = "cause idle_bytes total_bytes=figures.total_bytes free_bytes=figures.free_bytes"
    return asdict(shortage.oom) | fields(shortage, keys)


def _cure(cure: Cure) -> dict[str, Any]:
    return {
        "device_memory": cure.device_memory,
        "best": None if cure.best is None else trial_document(cure.best),
        "baseline": trial_document(cure.baseline),
        "trials": [trial_document(trial) for trial in cure.trials],
        "entries_left": cure.entries_left,
        "best_needs": cure.needs,
    }


_WIDTHS = (38, 16, 15, 9)
_RANGE_WIDTHS = (30, 16, 25, 9)


def _cured(cure: Cure) -> list[str]:
    if not cure.trials:
        return []
    where = "no limit" if cure.device_memory is None else format_size(cure.device_memory)
    cells = [
        ("", "out of memory", "peak reserved", "retries"),
        _cells("  as replayed above", cure.baseline),
    ]
    for trial in cure.trials:
        mark = "* " if trial is cure.best else "  "
        cells.append(_cells(mark + (trial.conf or "(defaults)"), trial))
    unproved = "; unproved" if cure.is_withheld else ""
    lines = [f"Settings tried, one replay each (device memory: {where}{unproved})", ""]
    widths = _RANGE_WIDTHS if any(trial.peak_range for trial in cure.trials) else _WIDTHS
    return lines + table(cells, widths)


def _cells(name: str, trial: Trial) -> tuple[str, str, str, str]:
    if trial.oom_entry is not None:
        # A run that ended early may need more than it reserved until then.
        return (name, f"entry {trial.oom_entry:,}", "-", "-")
    return (name, "no", peak_text(trial), f"{trial.num_alloc_retries:,}")


def screen(
    run: Run,
    shortages: Mapping[int, Sequence[Shortage]],
    found: Found | None = None,
    top: Top | None = None,
    edited: Sequence[EditedDevice] = (),
) -> Answer:
    shown = most_urgent(run.devices)
    parts = [warnings_part(run)]
    for device in shown:
        ooms = shortages.get(device.device, ())
        lines = row("Verdict", device_prefix(run, device) + verdict_sentence(device, ooms))
        parts.append(Part(lines, Tone.FAILURE if ooms else Tone.GOOD))
    conf = run.conf or "PyTorch's defaults"
    replayed = f"{entries(run)} under {conf}, as PyTorch {run.torch_version}"
    parts += [hidden_devices(run, shown), Part(row("Replayed", replayed), rank=4)]
    parts += [Part(edit_rows(edited, run), starts=True)] if edited else []
    for device in () if edited else shown:
        is_exact = device.fidelity is None or device.fidelity.is_exact
        lines = _proof_rows(device)
        lines = lines if len(shown) == 1 else _proof_in_a_line(device)
        tone = Tone.PLAIN if is_exact else Tone.FAILURE
        parts.append(Part(lines, tone, starts=device is shown[0]))
    parts += [Part(memory(run, device), rank=3) for device in shown]
    parts += [Part(lines, Tone.FAILURE) for device in shown if (lines := spill_rows(device))]
    paste = [] if found is None else to_paste(*found)
    return answer_of([*parts, *paste, owners_part(top, rank=2)])


def _proof_in_a_line(device: DeviceRun) -> list[str]:
    fidelity = device.fidelity
    if fidelity is None:
        return row("Proof", f"device {device.device}: none, the settings are not the recorded ones")
    if not fidelity.is_compared:
        return row("Proof", f"device {device.device}: none, the file holds requests only")
    found = f"{fidelity.addresses_matched:,} of {fidelity.allocations:,} addresses"
    return row("Proof", f"device {device.device}: {found} as recorded")
