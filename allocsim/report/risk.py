"""Result of `allocsim risk` as text and as JSON: how close a run came to running out of memory.

A full bar in the text is the memory of the device, or the run's peak if the device is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from allocsim.analysis.risk import HeadroomPoint, Need, Risk, Span
from allocsim.metrics import Measures
from allocsim.report.answer import (
    TABLES,
    Answer,
    Part,
    Tone,
    answer_of,
    later_requests,
    memory,
    owners_part,
    paste_rows,
    recommendation_document,
    to_paste,
    warnings_part,
)
from allocsim.report.layout import (
    exact_size,
    fields,
    paragraph,
    parting_document,
    plural,
    row,
    rows,
    table,
    unproved,
    warned,
)
from allocsim.simulation import SimulatedOom
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top

_BAR = 30
_WIDTHS = (44, 12, 12, 12)


def text(risk: Risk, top: Top | None = None) -> str:
    """Return the text of `allocsim risk -v`; `top` has the code that holds the memory."""
    memory = risk.device_run.device_memory
    device = "unknown: no limit" if memory is None else exact_size(memory)
    lines = [
        *warned(risk.run.warnings),
        *row("Recording", risk.run.path),
        *row("Device", f"{risk.device_run.device:,}"),
        *row("Settings", risk.run.conf or "PyTorch's defaults"),
        *row("Device memory", device),
    ]
    for note in risk.run.named_notes:
        lines += row("Note", note)
    lines += ["", *_over_time(risk), "", *_closest_rows(risk), *_largest_rows(risk), ""]
    is_proved = risk.device_run.parting is None
    lines += [*_needs(risk.needs, is_proved=is_proved), "", *_measures(risk.measures), ""]
    lines += [*paste_rows(risk.recommendation, [risk]), *owners_part(top).lines]
    return "\n".join(lines) + "\n"


def _over_time(risk: Risk) -> list[str]:
    memory = risk.device_run.device_memory
    scale = max(memory or 0, *(span.reserved_bytes for span in risk.spans), 1)
    lines = [
        "Memory over time: # live, = reserved and idle, . free",
        f"{'entries up to':>14}  {'live':>11}  {'reserved':>11}",
    ]
    return lines + [_span(span, scale, is_bounded=memory is not None) for span in risk.spans]


def _span(span: Span, scale: int, *, is_bounded: bool) -> str:
    live = round(_BAR * span.allocated_bytes / scale)
    reserved = max(live, round(_BAR * span.reserved_bytes / scale))
    bar = "#" * live + "=" * (reserved - live) + ("." if is_bounded else " ") * (_BAR - reserved)
    sizes = f"{format_size(span.allocated_bytes):>11}  {format_size(span.reserved_bytes):>11}"
    return f"{max(span.last, 0):>14,}  {sizes}  |{bar}|"


def _closest_rows(risk: Risk) -> list[str]:
    if risk.device_run.ooms:
        oom = risk.device_run.ooms[0]
        return _failed(oom, unproved(risk.device_run.parting, oom.entry))
    point = risk.tightest
    if point is None:
        return row("Closest call", "no request needed memory from the driver")
    lines = []
    if risk.device_run.device_memory is not None:
        lines = row(
            "Closest call",
            f"{unproved(risk.device_run.parting, point.entry)}entry {point.entry:,}: "
            f"{format_size(point.headroom_bytes)} more were available, "
            f"{format_size(point.free_bytes)} free and "
            f"{format_size(point.returnable_bytes)} that PyTorch could release",
        )
        if risk.code is not None:
            how = f" (inferred from {risk.code.inferred})" if risk.code.inferred else ""
            lines += row("", f"at {risk.code}{how}")
    if retries := risk.device_run.stats["num_alloc_retries"]:
        what = plural(retries, "request")
        lines += row("", f"{what} found the device full and emptied the cache first, which is slow")
    return lines


def _failed(oom: SimulatedOom, prefix: str) -> list[str]:
    missing = max(oom.tried_bytes - oom.free_bytes, 0)
    what = (
        f"{prefix}at entry {oom.entry:,}: {format_size(oom.tried_bytes)} tried, "
        f"{format_size(oom.free_bytes)} free, {format_size(missing)} short"
    )
    return rows("It fails", [what, "allocsim explain gives the cause"])


def _largest_rows(risk: Risk) -> list[str]:
    if risk.largest_entry is None:
        return []
    found = [f"{format_size(risk.largest_bytes)}, first at entry {risk.largest_entry:,}"]
    worst = risk.most_unusable
    if worst is not None:
        share = worst.unusable_bytes / max(worst.reserved_bytes, 1)
        found.append(
            f"at worst {format_size(worst.unusable_bytes)} of {format_size(worst.reserved_bytes)} "
            f"reserved ({share:.0%}) were idle but unusable for it (entry {worst.entry:,})"
        )
    return rows("Largest request", found)


def _needs(needs: Sequence[Need], *, is_proved: bool) -> list[str]:
    title = "The smallest device for each setting" if is_proved else "Smallest devices, unproved"
    cells = [(title, "device", "retries", "unlimited")]
    for need in needs:
        device, retries, peak = "none", "", ""
        if (found := need.capacity) is not None:
            device, retries = (
                format_size(found.device_memory),
                f"{found.trial.num_alloc_retries:,}",
            )
            peak = format_size(found.unlimited.peak_reserved_bytes)
        cells.append((f"  {need.conf or '(defaults)'}", device, retries, peak))
    how = "Each size is proved by a replay; 2 MiB less fails."
    if not is_proved:
        how = "No size is proved, because the replay differs from the recorded run."
    notes = paragraph(
        f"{how} Unlimited: the peak on an unlimited device, where no request has to empty the "
        "cache first.",
        indent=2,
    )
    return [*table(cells, _WIDTHS), *notes]


def _measures(found: Measures) -> list[str]:
    lines = row(
        "Fragmentation",
        f"peak reserved {format_size(found.peak_reserved_bytes)}, peak live "
        f"{format_size(found.peak_allocated_bytes)}: {found.utilization:.1%} used",
    )
    avoidable = [
        f"{format_size(found.avoidable_bytes)}: with every block's place chosen in advance, "
        f"{format_size(found.packed_bytes)} are enough; no placement needs less than "
        f"{format_size(found.lower_bound_bytes)}"
    ]
    if found.n_online:
        online = f"{found.n_online:,} of {found.n_blocks:,}"
        avoidable.append(f"({online} blocks were placed without looking ahead)")
    return lines + rows("Avoidable", avoidable)


def document(risk: Risk) -> dict[str, Any]:
    device_run, worst = risk.device_run, risk.most_unusable
    memory = device_run.device_memory
    return {
        **fields(risk, "file=run.path device=device_run.device conf=run.conf"),
        **fields(risk, "torch_version=run.torch_version device_memory=device_run.device_memory"),
        "notes": [*risk.run.warnings, *risk.run.named_notes],
        "parting": parting_document(device_run.parting),
        "fits": not device_run.ooms,
        "ooms": [asdict(oom) for oom in device_run.ooms],
        "headroom": [_point(point, memory) for point in risk.points],
        "tightest": None if risk.tightest is None else _point(risk.tightest, memory),
        "tightest_code": None if risk.code is None else asdict(risk.code),
        "largest_request": {
            "entry": risk.largest_entry,
            "bytes": risk.largest_bytes,
            "unusable": None if worst is None else _point(worst, memory),
        },
        "spans": [asdict(span) for span in risk.spans],
        "settings": [_need(need) for need in risk.needs],
        "recommendation": recommendation_document(risk.recommendation),
        "measures": {
            **asdict(risk.measures),
            **fields(risk.measures, "utilization avoidable_bytes open_bytes"),
        },
    }


def _point(point: HeadroomPoint, device_memory: int | None) -> dict[str, int | None]:
    document = {**asdict(point), "headroom_bytes": point.headroom_bytes}
    if device_memory is None:
        document |= {"free_bytes": None, "headroom_bytes": None}
    return document


def _need(need: Need) -> dict[str, Any]:
    document = fields(need, "conf min_device_memory_bytes=capacity.device_memory")
    if need.capacity is None:
        return document
    keys = (
        "smaller_fails_at=fails_at num_alloc_retries=trial.num_alloc_retries "
        "peak_reserved_bytes=unlimited.peak_reserved_bytes"
    )
    return document | fields(need.capacity, keys)


def screen(risk: Risk, top: Top | None = None) -> Answer:
    parts = [warnings_part(risk.run)]
    tone = Tone.FAILURE if risk.device_run.ooms else Tone.GOOD
    parts.append(Part(row("Verdict", unproved(risk.device_run.parting) + _verdict(risk)), tone))
    parts.append(Part(_closest_rows(risk)))
    parts.append(Part(memory(risk.run, risk.device_run)))
    parts.append(Part(_largest_rows(risk), rank=3))
    best = risk.recommendation.best
    shown = [risk.run.conf, *([] if best is None else [best.setting.conf])]
    needs = [need for need in risk.needs if need.conf in shown] or risk.needs[:1]
    sizes = [
        f"{need.conf or '(defaults)'}: {format_size(need.capacity.device_memory)}"
        for need in needs
        if need.capacity is not None
    ]
    prefix = unproved(risk.device_run.parting)
    lines = rows("Smallest device", (prefix + size for size in sizes))
    if best is None and sizes and risk.entries_left is not None:
        lines += row("", later_requests(risk.entries_left, "the error"))
    parts.append(Part(lines))
    parts += to_paste(risk.recommendation, [risk])
    return answer_of([*parts, owners_part(top, rank=2)], TABLES)


def _verdict(risk: Risk) -> str:
    device, point = risk.device_run, risk.tightest
    if device.ooms:
        return f"it does not fit: a request fails at entry {device.ooms[0].entry:,}."
    if device.device_memory is None:
        peak = format_size(device.peak_reserved_bytes)
        return f"the memory of the device is unknown; {peak} are always enough."
    if point is None:
        return "it fits: no request needed memory from the driver."
    return f"it fits, with {format_size(point.headroom_bytes)} to spare at the closest call."
