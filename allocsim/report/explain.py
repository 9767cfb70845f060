"""Explanation of out-of-memory errors in a recording: text, JSON and short answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from allocsim.analysis.explain import (
    KINDS,
    Blocker,
    Blockers,
    DeviceExplanation,
    Figures,
    Remedy,
    Shortage,
    arithmetic_of,
)
from allocsim.metrics import Code
from allocsim.report.answer import (
    Answer,
    Part,
    Tone,
    answer_of,
    device_prefix,
    ends_after,
    hidden_devices,
    most_urgent,
    owners_part,
    paste_rows,
    peak_text,
    recommendation_document,
    savings_document,
    savings_part,
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
    shortened,
    unproved,
    warned,
)
from allocsim.simulation import Run, SimulatedOom
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top

CAUSES = {
    "impossible": "the request alone is larger than the device allows",
    "host_fallback": "PyTorch holds more than the card has; host memory was used too",
    "fraction_limit": "a limit set for PyTorch stopped it, not the card",
    "free_above_request": "the driver refused although enough was free",
    "fragmentation": "PyTorch held enough idle memory, but not in one usable piece",
    "fragmentation_likely": "idle and free memory together are enough, but not in one piece",
    "full": "the card is full",
    "host_memory": "the memory of the host (RAM) ran out, not that of a GPU",
    "no_figures": "the text does not give enough figures",
    "pending_free": "a large enough block was freed too late",
    "private_pool": "a private pool holds enough memory for the request",
}
"""Dictionary from the cause of an out-of-memory error to its meaning in a few words."""

_SHOWN_OOMS = 3
_SHOWN_BLOCKERS = 12
_SIZE_WIDTH = 14


def text(run: Run, devices: Sequence[DeviceExplanation], top: Top | None = None) -> str:
    """Return the text of `allocsim explain -v` for a recording.

    top: lines of code that held the memory at the error; None if unknown.
    """
    lines = [*warned(run.warnings), *row("Recording", run.path)]
    lines += row("Settings", run.conf or "PyTorch's defaults")
    for note in run.named_notes:
        lines += row("Note", note)
    for device in devices:
        if len(devices) > 1:
            lines += ["", f"== device {device.device_run.device} =="]
        lines += ["", *_device(device)]
    if devices:
        lines += ["", *paste_rows(devices[0].recommendation, devices)]
    if top is not None:
        lines += ["", *owners_part(top).lines]
    for device in devices:
        lines += _savings(device).lines
    return "\n".join(lines) + "\n"


def _device(device: DeviceExplanation) -> list[str]:
    if not device.shortages:
        what = "no request failed; allocsim risk reports how close one came"
        return row("Verdict", unproved(device.device_run.parting) + what)
    earlier = earlier_errors(len(device.shortages) - _SHOWN_OOMS)
    lines = [*earlier, ""] if earlier else []
    pairs = list(zip(device.shortages, device.advice, strict=True))
    for shortage, advice in pairs[-_SHOWN_OOMS:]:
        lines += _shortage(shortage, unproved(device.device_run.parting, shortage.oom.entry))
        lines += [*rows("Advice", advice), ""]
    return lines + _remedies(device)


def _shortage(shortage: Shortage, prefix: str) -> list[str]:
    oom = shortage.oom
    text = f"at entry {oom.entry:,}, {known_text(oom)}: {_requested(oom)} requested, "
    lines = row("Out of memory", f"{text}{format_size(shortage.tried_bytes)} tried")
    lines += row("Verdict", f"{prefix}{shortage.cause}: {CAUSES[shortage.cause]}")
    lines += row("Because", cause_sentence(shortage))
    lines += row("Code", code_text(shortage.code))
    return lines + _blocks(shortage)


def _requested(oom: SimulatedOom) -> str:
    return format_size(oom.rounded_bytes if oom.requested_bytes is None else oom.requested_bytes)


def cause_sentence(shortage: Shortage) -> str:
    """Return a sentence with the sizes that show why the request failed."""
    findings = shortage.findings
    if shortage.cause == "pending_free" and findings is not None:
        return (
            f"{format_size(findings.late_bytes)} in one piece were freed while the request waited "
            "for other streams; PyTorch does not search again after that wait"
        )
    if shortage.cause == "private_pool" and findings is not None:
        return idle_in_private_pools(findings.kinds)
    return arithmetic_of(shortage.cause, shortage.figures)


def idle_in_private_pools(kinds: Mapping[str, int]) -> str:
    """Return a sentence on why free memory of private pools could not serve the request."""
    held = format_size(kinds["private_pool"])
    return f"{held} are idle in private pools, which this request may not use"


def kinds_table(kinds: Mapping[str, int]) -> list[str]:
    lines = [f"  {format_size(n):>{_SIZE_WIDTH}}  {KINDS[kind]}" for kind, n in kinds.items() if n]
    return [*lines, f"  {exact_size(sum(kinds.values()))} in total"]


def code_text(code: Code | None) -> str:
    if code is None:
        return "the recording has no stack frames"
    folded = f" ({plural(code.folded, 'frame')} of libraries inside)" if code.folded else ""
    return f"{code}{folded}" + (f"; inferred from {code.inferred}" if code.inferred else "")


def _blocks(shortage: Shortage) -> list[str]:
    findings = shortage.findings
    if findings is None:
        return []
    lines = ["", "Use of the device's memory", *kinds_table(findings.kinds), ""]
    largest = format_size(findings.largest_request_bytes)
    lines += row("Largest", f"a request of {largest} would have succeeded at that moment")
    if findings.blockers is None:
        now = "nothing any more: the same request would succeed now"
        return lines + row("In the way", now if findings.late_bytes else blockers_text(None))
    lines += row("In the way", blockers_text(findings.blockers))
    lines += ["", f"{'size':>{_SIZE_WIDTH}}  {'age, entries':>12}  {'entry':>9}  allocated at"]
    lines += [_blocker(blocker) for blocker in shortage.blockers[:_SHOWN_BLOCKERS]]
    hidden = len(shortage.blockers) - _SHOWN_BLOCKERS
    lines += [f"  and {plural(hidden, 'smaller one')}"] if hidden > 0 else []
    return [*lines, ""]


def blockers_text(found: Blockers | None) -> str:
    """Return a sentence on the allocated blocks that prevent a request."""
    if found is None:
        return "no live block: the request fails even without all of them"
    what = "would be free in one piece" if found.way == "run" else "would return to the driver"
    least = "the fewest bytes possible" if found.is_exact else "perhaps not the fewest bytes"
    without = "without it" if len(found.blocks) == 1 else "without them"
    return (
        f"{plural(len(found.blocks), 'live block')}, {format_size(found.cost_bytes)} in all; "
        f"{without} {format_size(found.freed_bytes)} {what} ({least})"
    )


def _blocker(blocker: Blocker) -> str:
    age = "older" if blocker.age is None else f"{blocker.age:,}"
    entry = "" if blocker.entry is None else f"{blocker.entry:,}"
    code = "before the recording" if blocker.entry is None else "no frames recorded"
    if blocker.code is not None:
        code = f"{blocker.code}{' (inferred)' if blocker.code.inferred else ''}"
    return (
        f"{format_size(blocker.size):>{_SIZE_WIDTH}}  {age:>12}  {entry:>9}  {shortened(code, 37)}"
    )


def _remedies(device: DeviceExplanation) -> list[str]:
    if not device.device_run.ooms:
        return []
    if device.device_run.parting is not None:
        return row(
            "Cures", "withheld: the replay differs from the recorded run, so nothing is proved"
        )
    lines = ["Changes under which every recorded request succeeds, each proved by a replay"]
    for remedy in device.remedies:
        lines += paragraph(_remedy(remedy), indent=2)
    if not any(remedy.kind == "conf" for remedy in device.remedies):
        lines += paragraph(
            f"no setting: {plural(len(device.tried), 'setting')} tried on this device", indent=2
        )
    if device.entries_left is not None:
        ends = ends_after(device.entries_left, "the error")
        lines += row("Warning", f"{ends}: later requests are not proved.")
    return lines


def _remedy(remedy: Remedy) -> str:
    retries = plural(remedy.trial.num_alloc_retries, "retry", "retries")
    peak = f"{peak_text(remedy.trial)} at its peak, {retries}"
    conf = remedy.conf or "PyTorch's defaults"
    if remedy.kind == "conf":
        needs = f"; {remedy.needs}" if remedy.needs else ""
        return f"setting   {conf} ({peak}{needs})"
    if remedy.kind == "memory_fraction":
        return f"fraction  {conf} ({peak})"
    fails = remedy.smaller_fails_at
    less = "" if fails is None else f"; 2 MiB less fails at entry {fails:,}"
    return f"device    {format_size(remedy.device_memory)} with {conf} ({retries}{less})"


def document(run: Run, devices: Sequence[DeviceExplanation]) -> dict[str, Any]:
    return {
        **fields(run, "file=path conf torch_version"),
        "card": card_document(run.card),
        "notes": [*run.warnings, *run.named_notes],
        "recommendation": recommendation_document(devices[0].recommendation if devices else None),
        "devices": [
            {
                "device": device.device_run.device,
                "parting": parting_document(device.device_run.parting),
            }
            for device in devices
        ],
        "ooms": [
            _oom(device, shortage, advice)
            for device in devices
            for shortage, advice in zip(device.shortages, device.advice, strict=True)
        ],
        "savings": [each for device in devices for each in savings_document(device.savings)],
    }


def _oom(device: DeviceExplanation, shortage: Shortage, advice: Sequence[str]) -> dict[str, Any]:
    parting, entry = device.device_run.parting, shortage.oom.entry
    findings = shortage.findings
    arithmetic = None
    if shortage.cause not in ("pending_free", "private_pool"):
        arithmetic = arithmetic_of(shortage.cause, shortage.figures) or None
    return {
        "device": device.device_run.device,
        "entry": entry,
        "is_recorded": shortage.oom.is_recorded,
        "is_proved": parting is None or not parting.is_before(entry),
        "cause": shortage.cause,
        "figures": figures_document(shortage.figures),
        "arithmetic": arithmetic,
        **fields(shortage.oom, "requested_bytes rounded_bytes message"),
        "code": _code_document(shortage.code),
        **fields(shortage, "kinds=findings.kinds"),
        **fields(shortage, "largest_request_bytes=findings.largest_request_bytes"),
        "blockers": [
            fields(each, "address size requested_bytes entry age_entries=age")
            | {"code": _code_document(each.code)}
            for each in shortage.blockers
        ],
        "blockers_summary": blockers_document(None if findings is None else findings.blockers),
        "cures": [_remedy_document(remedy) for remedy in device.remedies],
        "tried": [trial_document(trial) for trial in device.tried],
        "entries_left": device.entries_left,
        "advice": list(advice),
    }


def figures_document(figures: Figures) -> dict[str, int | None]:
    return {key: value for key, value in asdict(figures).items() if key.endswith("_bytes")}


def blockers_document(found: Blockers | None) -> dict[str, Any] | None:
    """Return totals of the allocated blocks that prevent a request, as JSON."""
    return None if found is None else fields(found, "way cost_bytes freed_bytes is_exact")


def _code_document(code: Code | None) -> dict[str, Any] | None:
    if code is None:
        return None
    return {
        "frame": asdict(code.frame),
        "folded": code.folded,
        "inferred": code.inferred or None,
        "frames": [asdict(frame) for frame in code.stack],
    }


def _remedy_document(remedy: Remedy) -> dict[str, Any]:
    trial = trial_document(remedy.trial)
    del trial["oom_entry"]
    own = fields(remedy, "kind device_memory smaller_fails_at")
    return own | trial | fields(remedy, "conf needs")


def screen(run: Run, devices: Sequence[DeviceExplanation], top: Top | None = None) -> Answer:
    parts = [warnings_part(run), *verdict_of_run(run, devices)]
    owners = owners_part(top)
    paste = to_paste(devices[0].recommendation if devices else None, devices)
    is_full = any(device.missing_bytes is not None for device in devices)
    # On a full device, no setting helps: the code that holds the memory must be shown.
    savings = [_savings(device) for device in devices]
    return answer_of([*parts, owners, *savings, *paste] if is_full else [*parts, *paste, owners])


def _savings(device: DeviceExplanation) -> Part:
    return savings_part(device.savings, device.missing_bytes)


def verdict_of_run(run: Run, devices: Sequence[DeviceExplanation]) -> list[Part]:
    """Return the lines with cause and failed request of each device; at most three devices."""
    shown = most_urgent([device.device_run for device in devices])
    by_number = {device.device_run.device: device for device in devices}
    found: list[Part] = []
    for device_run in shown:
        found += _explained(run, by_number[device_run.device], is_alone=len(devices) == 1)
    return [*found, hidden_devices(run, shown)]


def _explained(run: Run, device: DeviceExplanation, *, is_alone: bool) -> list[Part]:
    name = device_prefix(run, device.device_run)
    parting = device.device_run.parting
    if not device.shortages:
        return [Part(row("Verdict", f"{name}{unproved(parting)}no request failed"), Tone.GOOD)]
    shortage = device.shortages[-1]
    oom = shortage.oom
    more = len(device.shortages) - 1
    errors = f", the last of {more + 1:,} errors" if more else ""
    where = f"{_requested(oom)} requested at entry {oom.entry:,}{errors}"
    verdict = f"{name}{unproved(parting, oom.entry)}{shortage.cause}: {CAUSES[shortage.cause]}"
    found = [
        Part(row("Verdict", verdict), Tone.FAILURE),
        Part(row("Because", cause_sentence(shortage))),
        Part(rows("Request", [where, *_code(shortage)]), rank=2 if is_alone else 5),
    ]
    first = device.advice[-1][:1]
    if device.recommendation.best is None and first:
        found.append(Part(row("Advice", first[0]), rank=1))
    return found


def _code(shortage: Shortage) -> Iterable[str]:
    return () if shortage.code is None else (f"by {code_text(shortage.code)}",)
