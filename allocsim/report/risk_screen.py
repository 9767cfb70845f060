"""First screen of `risk`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocsim.analysis.risk import Risk
from allocsim.report.answer import Answer, Tone, answer_of, of_owners, part
from allocsim.report.layout import number, row, rows
from allocsim.report.risk import closest_rows, largest_rows
from allocsim.report.screen_parts import TABLES, memory, to_paste, warnings
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top

__all__ = ["risk_screen"]


def risk_screen(risk: Risk, top: Top | None = None) -> Answer:
    """Return the first screen of `allocsim risk`; `top` has the code that holds the memory."""
    parts = [warnings(risk.run)]
    tone = Tone.FAILURE if risk.device_run.ooms else Tone.GOOD
    parts.append(part(row("Verdict", _risk_verdict(risk)), tone))
    parts.append(part(closest_rows(risk)))
    parts.append(part(memory(risk.run, risk.device_run)))
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
    parts += to_paste(risk.recommendation)
    return answer_of([*parts, of_owners(top, rank=2)], TABLES)


def _risk_verdict(risk: Risk) -> str:
    device, point = risk.device_run, risk.tightest
    unproved = "" if device.parting is None else "unproved: "
    if device.ooms:
        return (
            f"{unproved}it does not fit: a request fails at entry {number(device.ooms[0].entry)}."
        )
    if device.device_memory is None:
        peak = format_size(device.peak_reserved_bytes)
        return f"{unproved}the memory of the device is unknown; {peak} are always enough."
    if point is None:
        return f"{unproved}it fits: no request needed memory from the driver."
    spare = format_size(point.headroom_bytes)
    return f"{unproved}it fits, with {spare} to spare at the closest call."
