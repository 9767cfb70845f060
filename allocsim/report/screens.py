"""The first screens of `replay`, `explain`, `tune` and `risk`: what a user has to know.

Rule: every sentence is one that the full text has as well; what is left out stands under -v.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from allocsim.engine import OTHER_RELEASE, DeviceRun, Run
from allocsim.measures import Recommendation, WhyNot
from allocsim.questions.explain import DeviceExplanation, Shortage, Verdict
from allocsim.questions.risk import Risk
from allocsim.questions.top import Top
from allocsim.questions.tune import Tuning
from allocsim.report.answer import Answer, Part, Tone, answer_of, of_owners, part
from allocsim.report.explain import CAUSES, because, code_text
from allocsim.report.layout import number, paragraph, plural, row, rows, warned
from allocsim.report.recommendation import paste_line, paste_notes, paste_setting
from allocsim.report.replay import Found, proof_rows, verdict_sentence
from allocsim.report.risk import closest_rows, largest_rows
from allocsim.report.tune import further_rows, row_figures
from allocsim.units import format_size

__all__ = [
    "explanation_screen", "replay_screen", "risk_screen", "tuning_screen", "verdicts_screen",
]  # fmt: skip

_SHOWN_DEVICES = 3
_ADVICE_LINES = 15
_SHOWN_ERRORS = 4
_TABLES = "-v: every setting and figure; --json: the same for programs"
_HIDDEN = "-v: all of it; --json: the same for programs"


def replay_screen(
    run: Run,
    shortages: Mapping[int, Sequence[Shortage]],
    found: Found | None = None,
    top: Top | None = None,
) -> Answer:
    """`allocsim replay` on a terminal.  top: who held the memory, None where it is not told."""
    shown = _most_urgent(run.devices)
    parts = [_warnings(run)]
    for device in shown:
        ooms = shortages.get(device.device, ())
        label, name = _named("Verdict", run, device)
        lines = row(label, name + verdict_sentence(device, ooms))
        parts.append(part(lines, Tone.FAILURE if ooms else Tone.GOOD))
    conf = run.conf or "PyTorch's defaults"
    replayed = f"{_entries(run)} under {conf}, as PyTorch {run.torch_version}"
    parts += [_others(run, shown), part(row("Replayed", replayed), rank=4)]
    for device in shown:
        is_exact = device.fidelity is None or device.fidelity.is_exact
        lines = proof_rows(device)
        lines = lines if len(shown) == 1 else _proof_in_a_line(device)
        tone = Tone.PLAIN if is_exact else Tone.FAILURE
        parts.append(part(lines, tone, starts=device is shown[0]))
    parts += [part(_memory(run, device), rank=3) for device in shown]
    entries_left = None
    if found is not None:
        entries_left = next((c.entries_left for c in found[1] if c.entries_left is not None), None)
    return answer_of([*parts, *_to_paste(found and found[0], entries_left), of_owners(top, rank=2)])


def _most_urgent(devices: Sequence[DeviceRun]) -> list[DeviceRun]:
    """The devices that are shown: those that failed, then others in the recording's order."""
    return sorted(devices, key=lambda device: not device.ooms)[:_SHOWN_DEVICES]


def _warnings(run: Run) -> Part:
    """What has to be said first: that it is not the recorded run, or not the recorded release."""
    return _said_first(run.warnings, run.named_notes)


def _said_first(warnings: Sequence[str], notes: Sequence[str]) -> Part:
    lines = warned(warnings[:1])[:-1]
    other = [line for note in notes if note.endswith(OTHER_RELEASE) for line in row("Note", note)]
    return part([*lines, *other], Tone.FAILURE if lines else Tone.PLAIN)


def _named(label: str, run: Run, device: DeviceRun) -> tuple[str, str]:
    """A label, and the device's name where there are several."""
    return label, f"device {device.device}: " if len(run.devices) > 1 else ""


def _others(run: Run, shown: Sequence[DeviceRun]) -> Part:
    """The devices that are not shown, in a line."""
    hidden = [device for device in run.devices if device not in shown]
    if not hidden:
        return part(())
    failed = sum(bool(device.ooms) for device in hidden)
    what = f"{plural(failed, 'of them', 'of them')} out of memory" if failed else "none failed"
    return part(row("", f"and {plural(len(hidden), 'more device')}: {what} (--device N shows one)"))


def _entries(run: Run) -> str:
    if len(run.devices) == 1:
        (device,) = run.devices
        return f"{plural(device.entries, 'entry', 'entries')} of device {device.device}"
    entries = sum(device.entries for device in run.devices)
    return f"{plural(entries, 'entry', 'entries')} of {number(len(run.devices))} devices"


def _proof_in_a_line(device: DeviceRun) -> list[str]:
    fidelity = device.fidelity
    if fidelity is None:
        return row("Proof", f"device {device.device}: none, these are not the recorded settings")
    found = f"{number(fidelity.addresses_matched)} of {number(fidelity.allocations)} addresses"
    return row("Proof", f"device {device.device}: {found} as recorded")


def _memory(run: Run, device: DeviceRun) -> list[str]:
    _, name = _named("", run, device)
    memory = device.device_memory
    card = "a device of unknown size" if memory is None else f"a device of {format_size(memory)}"
    peaks = (
        f"{name}{format_size(device.peak_reserved_bytes)} reserved at the peak on {card}, "
        f"{format_size(device.peak_allocated_bytes)} allocated"
    )
    low, high = map(format_size, device.peak_range)
    if low != high:
        peaks += f"; {low} to {high} by what the recording does not tell"
    return row("Memory", peaks)


def _to_paste(found: Recommendation | None, entries_left: int | None) -> list[Part]:
    """The line, and what is proved of it."""
    if found is None:
        return []
    lines = paste_line(found)
    tone = Tone.PLAIN if found.best is None else Tone.PASTE
    notes = " ".join(paste_notes(found, entries_left))
    return [part(lines, tone, starts=True), part(paragraph(notes) if notes else ())]


def explanation_screen(
    run: Run, devices: Sequence[DeviceExplanation], top: Top | None = None
) -> Answer:
    """`allocsim explain` of a recording."""
    shown = _most_urgent([device.device_run for device in devices])
    parts = [_warnings(run)]
    by_number = {device.device_run.device: device for device in devices}
    for device_run in shown:
        parts += _explained(run, by_number[device_run.device], is_alone=len(devices) == 1)
    parts.append(_others(run, shown))
    left = next((d.entries_left for d in devices if d.entries_left is not None), None)
    owners = of_owners(top)
    paste = _to_paste(devices[0].recommendation if devices else None, left)
    is_full = any(s.cause == "full" for d in devices for s in d.shortages[-1:])
    # Where it is simply too much memory, who holds it is the answer.
    return answer_of([*parts, owners, *paste] if is_full else [*parts, *paste, owners])


def _explained(run: Run, device: DeviceExplanation, *, is_alone: bool) -> list[Part]:
    label, name = _named("Verdict", run, device.device_run)
    parting = device.device_run.parting
    if not device.shortages:
        unproved = "unproved: " if parting is not None else ""
        return [part(row(label, f"{name}{unproved}no request failed"), Tone.GOOD)]
    shortage = device.shortages[-1]
    oom = shortage.oom
    unproved = "unproved: " if parting is not None and parting.is_before(oom.entry) else ""
    asked = oom.rounded_bytes if oom.requested_bytes is None else oom.requested_bytes
    more = len(device.shortages) - 1
    errors = f", the last of {number(more + 1)} errors" if more else ""
    where = f"{format_size(asked)} asked for at entry {number(oom.entry)}{errors}"
    found = [
        part(
            row(label, f"{name}{unproved}{shortage.cause}: {CAUSES[shortage.cause]}"), Tone.FAILURE
        ),
        part(row("Because", because(shortage))),
        part(rows("Request", [where, *_code(shortage)]), rank=2 if is_alone else 5),
    ]
    first = device.advice[-1][:1]
    if device.recommendation.best is None and first:
        found.append(part(row("Advice", first[0]), rank=1))
    return found


def _code(shortage: Shortage) -> Iterable[str]:
    return () if shortage.code is None else (f"by {code_text(shortage.code)}",)


def verdicts_screen(verdicts: Sequence[Verdict]) -> Answer:
    """`allocsim explain` of a text.  Errors that repeat at once are shown once."""
    runs = [list(run) for _, run in groupby(verdicts, lambda v: (v.figures, v.cause, v.advice))]
    verdict = runs[-1][0]
    parts = []
    if len(verdicts) > 1:
        parts.append(part(_listed(runs)))
    tone = Tone.PLAIN if verdict.cause == "no_figures" else Tone.FAILURE
    parts.append(part(row("Verdict", f"{verdict.cause}: {CAUSES[verdict.cause]}"), tone))
    if verdict.arithmetic:
        parts.append(part(row("Because", verdict.arithmetic)))
    lines: list[str] = []
    for count, sentence in enumerate(verdict.advice):
        added = row("" if lines else "Advice", sentence)
        if lines and len(lines) + len(added) > _ADVICE_LINES:
            lines += row("", f"({plural(len(verdict.advice) - count, 'more sentence')})")
            break
        lines += added
    return answer_of([*parts, part(lines, starts=True)], _HIDDEN)


def _listed(runs: Sequence[Sequence[Verdict]]) -> list[str]:
    """The errors of a log, a line each, the last of which is the one that is told."""
    lines = []
    for run in runs[-_SHOWN_ERRORS:]:
        first = run[0]
        times = f", {number(len(run))} times" if len(run) > 1 else ""
        lines.append(f"line {number(first.message.line)}{times}: {first.cause}")
    if (hidden := sum(len(run) for run in runs[:-_SHOWN_ERRORS])) > 0:
        lines.insert(0, f"({plural(hidden, 'error')} before these)")
    return rows("Errors", [*lines, "of the last:"])


def tuning_screen(tuning: Tuning, top: Top | None = None) -> Answer:
    """`allocsim tune` on a terminal."""
    base, found = tuning.baseline, tuning.recommendation
    label = "As recorded" if base.is_as_recorded else "Own settings"
    unproved = "unproved: " if tuning.warnings else ""
    likely = "" if found is None or found.is_sure else "likely, not proved: "
    verdict = f"{likely}{tuning.reason}" if tuning.helps else f"nothing helps: {tuning.reason}"
    if tuning.warnings:
        verdict = f"withheld: {tuning.reason}"
    good = Tone.GOOD if tuning.helps else Tone.PLAIN
    parts = [
        _said_first(tuning.warnings, tuning.notes),
        part(row("Verdict", f"{verdict}."), Tone.FAILURE if tuning.warnings else good),
        part(row(label, f"{unproved}{base.setting}: {row_figures(tuning, base)}")),
    ]
    if tuning.helps and tuning.best is not None:
        best = tuning.best
        parts.append(part(row("Best", f"{best.setting}: {row_figures(tuning, best)}")))
        if found is None:
            lines = paste_setting(best.setting)
            parts.append(part(lines, Tone.PASTE, starts=True))
    if tuning.warnings:
        parts.append(part(row("To paste", f"nothing: {WhyNot.WITHHELD}."), starts=True))
    parts += _to_paste(found, None)
    return answer_of([*parts, *_searched(tuning, top)], _TABLES)


def _searched(tuning: Tuning, top: Top | None) -> list[Part]:
    """What there was to gain, what was found beyond, and how much was tried."""
    bounds = tuning.bounds
    ideal = (
        f"{format_size(bounds.peak_live_bytes)} live at once, which no allocator undercuts; with "
        f"every place chosen beforehand {format_size(bounds.packed_bytes)} do"
    )
    whole = sum(each.is_whole for each in tuning.rows)
    tried = f"{plural(len(tuning.rows), 'setting')}, {number(whole)} of them to the end"
    return [
        part(row("Ideal", ideal), rank=3),
        part(further_rows(tuning), rank=4),
        of_owners(top, rank=2),
        part(row("Tried", f"{tried} ({tuning.seconds:,.1f} s)"), rank=5, starts=True),
    ]


def risk_screen(risk: Risk, top: Top | None = None) -> Answer:
    """`allocsim risk` on a terminal."""
    parts = [_warnings(risk.run)]
    tone = Tone.FAILURE if risk.device_run.ooms else Tone.GOOD
    parts.append(part(row("Verdict", _risk_verdict(risk)), tone))
    parts.append(part(closest_rows(risk)))
    parts.append(part(_memory(risk.run, risk.device_run)))
    parts.append(part(largest_rows(risk), rank=3))
    best = risk.recommendation.best
    shown = [risk.run.conf, *([] if best is None else [best.setting.conf])]
    needs = [need for need in risk.needs if need.conf in shown] or risk.needs[:1]
    sizes = (
        f"{need.conf or '(defaults)'}: {format_size(need.capacity.device_memory)}"
        for need in needs
        if need.capacity is not None
    )
    unproved = "" if risk.device_run.parting is None else "unproved: "
    parts.append(part(rows("Smallest device", (f"{unproved}{size}" for size in sizes))))
    parts += _to_paste(risk.recommendation, None)
    return answer_of([*parts, of_owners(top, rank=2)], _TABLES)


def _risk_verdict(risk: Risk) -> str:
    device, point = risk.device_run, risk.tightest
    unproved = "" if device.parting is None else "unproved: "
    if device.ooms:
        return (
            f"{unproved}it does not fit: a request fails at entry {number(device.ooms[0].entry)}."
        )
    if device.device_memory is None:
        peak = format_size(device.peak_reserved_bytes)
        return f"{unproved}how much memory the device has is not known; {peak} would always do."
    if point is None:
        return f"{unproved}it fits: no request needed memory from the driver."
    spare = format_size(point.headroom_bytes)
    return f"{unproved}it fits, with {spare} to spare where it was closest to failing."
