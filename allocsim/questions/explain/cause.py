"""Why a request found no memory, by the figures of the moment alone.

Rule: a cause is named by the first comparison that holds, in the order of `MESSAGE_CAUSES`; a
comparison that lacks a figure is left out, and with nothing to compare it is `no_figures`.

Printed figures are rounded, and two comparisons are ones that a refusal itself has answered.
The driver refused, so free memory counts as enough only where rounding cannot have made it so.
A limit is printed only where one is set, so one that rounding may have hidden counts as reached
if the driver had the memory.  The others compare the figures as they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allocsim.units import GIB, KIB, MIB, format_size

__all__ = ["MESSAGE_CAUSES", "Figures", "cause_of", "rounding_of", "arithmetic_of"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What an out-of-memory text prints, in bytes; None where it prints no such figure.

    tried_bytes: the segment asked from the driver, or what was asked of it.  total_bytes,
    free_bytes: of the device.  allocated_bytes: live in PyTorch.  reserved_bytes: held by
    PyTorch, live or not; idle_bytes: held and not allocated; a text has one of the two.
    limit_bytes: what PyTorch may reserve at most.  process_bytes: the process on the device,
    all included.  pool_bytes: allocated in private pools, a part of allocated_bytes.
    printed: rounded to the second decimal of its unit, as PyTorch prints.
    """

    tried_bytes: int | None = None
    total_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    idle_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    process_bytes: int | None = None
    pool_bytes: int | None = None
    printed: bool = False

    @property
    def reserved(self) -> int | None:
        """Reserved bytes, added up where the text prints its two parts."""
        if self.reserved_bytes is not None:
            return self.reserved_bytes
        if self.allocated_bytes is None or self.idle_bytes is None:
            return None
        return self.allocated_bytes + self.idle_bytes

    @property
    def idle(self) -> int | None:
        """Reserved but unallocated bytes, subtracted where the text prints the whole."""
        if self.idle_bytes is not None:
            return self.idle_bytes
        if self.allocated_bytes is None or self.reserved_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)

    @property
    def within_reach(self) -> int | None:
        """Idle and free together; None where either is unknown."""
        idle = self.idle
        return None if idle is None or self.free_bytes is None else idle + self.free_bytes

    @property
    def unallocated(self) -> int | None:
        """All of the card but what is live: idle and free memory are at most this."""
        if self.total_bytes is None or self.allocated_bytes is None:
            return None
        return max(0, self.total_bytes - self.allocated_bytes)

    @property
    def limited(self) -> int | None:
        """What counts against the limit: what PyTorch holds, else the process, else the live."""
        for held in (self.reserved, self.process_bytes, self.allocated_bytes):
            if held is not None:
                return held
        return None

    @property
    def real_limit(self) -> int | None:
        """The limit, where it lies below the card: fraction 1.0 limits nothing."""
        limit, total = self.limit_bytes, self.total_bytes
        return limit if limit is not None and (total is None or limit < total) else None

    def doubt(self, *values: int | None) -> float:
        """How far rounding may have moved a sum or difference of `values`; 0 where exact."""
        return sum(rounding_of(value) for value in values if value) if self.printed else 0


def rounding_of(size: int) -> float:
    """Half a unit of the last digit that PyTorch prints of `size` bytes (semantics 7.1)."""
    if size <= KIB:
        return 0
    return 0.005 * (KIB if size <= MIB else MIB if size <= GIB else GIB)


def cause_of(figures: Figures) -> str:
    """The cause that `figures` prove, one of `MESSAGE_CAUSES`; `no_figures` where none."""
    if figures.tried_bytes is None:
        return "no_figures"
    return next((name for name, holds in _COMPARISONS if holds(figures)), "no_figures")


def _impossible(figures: Figures) -> bool:
    tried, total = figures.tried_bytes, figures.total_bytes
    return tried is not None and total is not None and tried > total


def _host_fallback(figures: Figures) -> bool:
    live, total = figures.allocated_bytes, figures.total_bytes
    if live is None or total is None:
        return False
    return live > total and live - total >= figures.doubt(live, total)


def _fraction_limit(figures: Figures) -> bool:
    tried, held, limit = figures.tried_bytes, figures.limited, figures.real_limit
    if tried is None or held is None or limit is None:
        return False
    doubt = figures.doubt(held, tried, limit)
    over = held + tried - limit
    driver_had_it = figures.free_bytes is None or figures.free_bytes >= tried
    return over > 0 or (driver_had_it and over + doubt > 0)


def _free_above_request(figures: Figures) -> bool:
    tried, free = figures.tried_bytes, figures.free_bytes
    if tried is None or free is None:
        return False
    # A byte of grace: the ends of two printed ranges that touch are themselves rounded.
    doubt = max(0, figures.doubt(tried, free) - 1)
    return free - tried >= doubt


def _fragmentation(figures: Figures) -> bool:
    tried, idle = figures.tried_bytes, figures.idle
    return tried is not None and idle is not None and idle >= tried


def _fragmentation_likely(figures: Figures) -> bool:
    tried, reach = figures.tried_bytes, figures.within_reach
    return tried is not None and reach is not None and reach >= tried


def _full(figures: Figures) -> bool:
    # What is idle may be unknown (the asynchronous backend, a log line): the card is full.
    if figures.free_bytes is not None:
        return figures.tried_bytes is not None
    rest = figures.unallocated
    return figures.tried_bytes is not None and rest is not None and figures.tried_bytes > rest


_COMPARISONS: tuple[tuple[str, Callable[[Figures], bool]], ...] = (
    ("impossible", _impossible),
    ("host_fallback", _host_fallback),
    ("fraction_limit", _fraction_limit),
    ("free_above_request", _free_above_request),
    ("fragmentation", _fragmentation),
    ("fragmentation_likely", _fragmentation_likely),
    ("full", _full),
)

MESSAGE_CAUSES = (*(name for name, _ in _COMPARISONS), "no_figures")
"""What figures can prove, in the order in which it is asked."""


def arithmetic_of(cause: str, figures: Figures) -> str:
    """One line, such as "2.87 GiB tried <= 4.94 GiB idle"; "" where there is nothing to show."""
    return _LINES[cause](figures)


def _size(size: int | None) -> str:
    return "?" if size is None else format_size(size)


def _impossible_line(figures: Figures) -> str:
    if figures.tried_bytes is None or figures.total_bytes is None:
        return ""
    return f"{_size(figures.tried_bytes)} tried > {_size(figures.total_bytes)} on the card"


def _host_fallback_line(figures: Figures) -> str:
    return f"{_size(figures.allocated_bytes)} allocated > {_size(figures.total_bytes)} on the card"


def _fraction_limit_line(figures: Figures) -> str:
    if figures.real_limit is None or figures.limited is None:
        return "" if figures.tried_bytes is None else f"{_size(figures.tried_bytes)} tried"
    held = "reserved" if figures.reserved is not None else "in use"
    free = "" if figures.free_bytes is None else f"; {_size(figures.free_bytes)} free"
    total = figures.limited + (figures.tried_bytes or 0)
    sign = ">" if total > figures.real_limit else "~"
    return (
        f"{_size(figures.limited)} {held} + {_size(figures.tried_bytes)} tried "
        f"{sign} {_size(figures.real_limit)} allowed{free}"
    )


def _free_above_request_line(figures: Figures) -> str:
    return f"{_size(figures.tried_bytes)} tried <= {_size(figures.free_bytes)} free"


def _fragmentation_line(figures: Figures) -> str:
    return f"{_size(figures.tried_bytes)} tried <= {_idle(figures)}{_doubt(figures)}"


def _together_line(figures: Figures) -> str:
    tried, reach = figures.tried_bytes, figures.within_reach
    if figures.free_bytes is None:
        total, live = _size(figures.total_bytes), _size(figures.allocated_bytes)
        rest = _size(figures.unallocated)
        return f"{_size(tried)} tried > {rest} = {total} on the card - {live} allocated"
    if reach is None:
        return f"{_size(tried)} tried > {_size(figures.free_bytes)} free"
    sign = "<=" if tried is not None and tried <= reach else ">"
    return (
        f"{_size(tried)} tried {sign} {_size(reach)} = {_size(figures.idle)} idle + "
        f"{_size(figures.free_bytes)} free{_doubt(figures)}"
    )


def _idle(figures: Figures) -> str:
    if figures.idle_bytes is not None:
        return f"{_size(figures.idle_bytes)} idle"
    reserved, allocated = _size(figures.reserved_bytes), _size(figures.allocated_bytes)
    return f"{_size(figures.idle)} idle = {reserved} reserved - {allocated} allocated"


def _doubt(figures: Figures) -> str:
    """Where the text is too coarse to decide: by how much it may be wrong."""
    tried, idle, reach = figures.tried_bytes, figures.idle, figures.within_reach
    if tried is None or idle is None:
        return ""
    parts = (
        (figures.idle_bytes,)
        if figures.idle_bytes is not None
        else (figures.reserved_bytes, figures.allocated_bytes)
    )
    bounds = [(idle, figures.doubt(tried, *parts))]
    if reach is not None:
        bounds.append((reach, figures.doubt(tried, figures.free_bytes, *parts)))
    close = [doubt for size, doubt in bounds if abs(size - tried) < doubt]
    return f" (+- {_size(round(max(close)))}: the text is rounded)" if close else ""


def _no_figures_line(figures: Figures) -> str:
    return "" if figures.tried_bytes is None else f"{_size(figures.tried_bytes)} tried"


_LINES: dict[str, Callable[[Figures], str]] = {
    "impossible": _impossible_line,
    "host_fallback": _host_fallback_line,
    "fraction_limit": _fraction_limit_line,
    "free_above_request": _free_above_request_line,
    "fragmentation": _fragmentation_line,
    "fragmentation_likely": _together_line,
    "full": _together_line,
    "no_figures": _no_figures_line,
}
