"""Owners of pinned host memory at one moment of a recording."""

from __future__ import annotations

from dataclasses import replace

from allocsim.analysis.top import Top, top_of_state
from allocsim.errors import RecordingError
from allocsim.host import follow, state_after
from allocsim.ownership import Moment
from allocsim.recording import Trace
from allocsim.units import format_size


def top_host(
    path: str,
    trace: Trace,
    at: str | int | None = None,
    *,
    by: str = "line",
    frames: int | None = None,
) -> Top:
    """Return the owners of the pinned host memory that the program used at a moment.

    at: "peak" for the most bytes in use, "end", or an entry number; None means "peak".
    by: kind of owner: "line", "stack", "module", "category", "stream" or "pool".
    frames: number of stack frames in the name of an owner; None for the default of `top`.
    """
    entry, what = _host_moment(path, trace, at)
    answer = top_of_state(path, state_after(trace, entry), by=by, frames=frames)
    totals = follow(trace, entry + 1).end
    notes = (
        f"{format_size(totals.pinned)} were pinned: {format_size(totals.in_use)} in use, "
        f"{format_size(totals.waiting)} freed and waiting, {format_size(totals.cached)} cached",
        "sizes are those of blocks, mostly rounded up to a power of two",
    )
    return replace(answer, at=Moment(max(entry, 0), what), notes=notes)


def _host_moment(path: str, trace: Trace, at: str | int | None) -> tuple[int, str]:
    last = len(trace) - 1
    if at in (None, "peak"):
        return follow(trace).peak_in_use.entry, "peak"
    if at == "end":
        return last, "end"
    if not isinstance(at, int):
        raise RecordingError(path, f"pinned memory has no moment {at!r}; expected peak or end")
    if not 0 <= at <= last:
        raise RecordingError(path, f"entry {at} does not exist; the last entry is {last}")
    return at, "entry"
