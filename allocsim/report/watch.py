"""Report of `allocsim watch` on a new recording: one line, and the cause if its program failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from allocsim._repr import printable
from allocsim.analysis.explain import DeviceExplanation, Verdict
from allocsim.analysis.watch import Arrival, Unreadable
from allocsim.report.answer import Part, paste_line
from allocsim.report.explain import verdict_of_run
from allocsim.report.explain_message import verdict_of_text
from allocsim.report.layout import fields, plural, row
from allocsim.simulation import Run
from allocsim.units import format_size

Explained = tuple[Run, Sequence[DeviceExplanation]]


def text(
    arrived: Arrival | Unreadable,
    explained: Explained | None = None,
    verdicts: Sequence[Verdict] = (),
    problem: str = "",
) -> str:
    """Return the report on one file.

    arrived: contents of the file, or the reason why it cannot be read.
    explained: replay and explanation of each device; None if the file's history has no error.
    verdicts: causes of the final error, read from its text; printed if `explained` is None.
    problem: reason why an error could not be explained; "" if there is none.
    """
    if isinstance(arrived, Unreadable):
        return printable(f"cannot be read: {arrived.reason}") + "\n"
    lines = [_line(arrived)]
    if explained is not None:
        lines += _of_run(*explained)
    elif verdicts:
        lines += _lines(verdict_of_text(verdicts))
    if problem:
        lines += row("Not explained", problem)
    return "\n".join(lines) + "\n"


def _line(arrived: Arrival) -> str:
    name = PurePath(arrived.path).name
    parts = [f"rank {arrived.rank}"] * bool(arrived.rank)
    if arrived.has_failed:
        parts.append(plural(arrived.ooms, "out-of-memory error") if arrived.ooms else "failed")
    else:
        parts.append("no error")
    if not arrived.recording.is_requests:
        parts.append(f"{format_size(arrived.reserved_bytes)} reserved")
    parts.append(plural(arrived.entries, "entry", "entries"))
    return printable(f"{name}: {', '.join(parts)}")


def _of_run(run: Run, devices: Sequence[DeviceExplanation]) -> list[str]:
    lines = _lines(verdict_of_run(run, devices))
    return lines + (paste_line(devices[0].recommendation) if devices else [])


def _lines(parts: Iterable[Part]) -> list[str]:
    return [line for part in parts for line in part.lines]


def document(
    arrived: Arrival | Unreadable,
    explained: Explained | None = None,
    verdicts: Sequence[Verdict] = (),
    problem: str = "",
) -> dict[str, Any]:
    if isinstance(arrived, Unreadable):
        return {"path": arrived.path, "error": arrived.reason}
    causes = [verdict.cause for verdict in verdicts]
    if explained is not None:
        causes = [each.cause for device in explained[1] for each in device.shortages]
    return {
        "path": arrived.path,
        "error": problem or None,
        **fields(arrived, "rank captured entries reserved_bytes allocated_bytes num_ooms=ooms"),
        "causes": causes,
    }
