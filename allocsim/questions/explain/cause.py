"""Why a request found no memory, by the figures of the moment alone.

Rule: the cause is the first comparison that holds, in the order of `MESSAGE_CAUSES`; one that
lacks a figure does not hold, and where none holds the cause is `no_figures`.

Printed figures are rounded, and the refusal itself says how to read two of them.  The driver
refused, so free memory counts as enough only where rounding cannot have made it so.  A limit is
printed only where one is set, so it counts as reached if the driver had the memory and rounding
may have hidden the excess.  The others compare the figures as they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

from allocsim.units import GIB, KIB, MIB, format_size

__all__ = ["MESSAGE_CAUSES", "Figures", "cause_of", "rounding_of", "arithmetic_of"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What an out-of-memory text prints, in bytes; None where it prints no such figure.

    tried_bytes: the segment asked from the driver, or what was asked of it.
    total_bytes, free_bytes: of the device.
    allocated_bytes: live in PyTorch.
    reserved_bytes: held by PyTorch, live or not; a text prints this or idle_bytes.
    idle_bytes: held and not allocated.
    limit_bytes: what PyTorch may reserve at most.
    process_bytes: all that the process holds on the device.
    pool_bytes: allocated in private pools, a part of allocated_bytes.
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
        held = (self.reserved, self.process_bytes, self.allocated_bytes)
        return next((size for size in held if size is not None), None)

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


MESSAGE_CAUSES = (
    "impossible",
    "host_fallback",
    "fraction_limit",
    "free_above_request",
    "fragmentation",
    "fragmentation_likely",
    "full",
    "no_figures",
)
"""What figures can prove, in the order in which it is asked."""


def cause_of(figures: Figures) -> str:
    """The cause that `figures` prove, one of `MESSAGE_CAUSES`; `no_figures` where none."""
    comparisons = () if figures.tried_bytes is None else _comparisons(figures)
    proved = (cause for cause, holds in zip(MESSAGE_CAUSES, comparisons, strict=False) if holds)
    return next(proved, "no_figures")


def _comparisons(figures: Figures) -> Iterator[bool]:
    """Whether each cause but the last holds; with an unknown figure, which is nan, none does."""
    tried, total = _known(figures.tried_bytes), _known(figures.total_bytes)
    live, free = _known(figures.allocated_bytes), _known(figures.free_bytes)
    held, limit = _known(figures.limited), _known(figures.real_limit)
    yield tried > total
    yield live > total and live - total >= figures.doubt(
        figures.allocated_bytes, figures.total_bytes
    )
    over = held + tried - limit
    doubt = figures.doubt(figures.limited, figures.tried_bytes, figures.real_limit)
    yield over > 0 or (not free < tried and over + doubt > 0)
    # A byte of grace: the ends of two printed ranges that touch are themselves rounded.
    yield free - tried >= max(0, figures.doubt(figures.tried_bytes, figures.free_bytes) - 1)
    yield _known(figures.idle) >= tried
    yield _known(figures.within_reach) >= tried
    # What is idle may be unknown (the asynchronous backend, a log line): the card is full.
    yield figures.free_bytes is not None or tried > _known(figures.unallocated)


def _known(size: int | None) -> float:
    return nan if size is None else size


def arithmetic_of(cause: str, figures: Figures) -> str:
    """One line, such as "2.87 GiB tried <= 4.94 GiB idle"; "" where there is nothing to show."""
    line = tried = f"{_size(figures.tried_bytes)} tried"
    match cause:
        case "impossible":
            line = "" if figures.total_bytes is None else f"{tried} > {_total(figures)}"
        case "host_fallback":
            return f"{_size(figures.allocated_bytes)} allocated > {_total(figures)}"
        case "fraction_limit" if figures.real_limit is not None and figures.limited is not None:
            return _limit_line(tried, figures.limited, figures.real_limit, figures)
        case "free_above_request":
            return f"{tried} <= {_size(figures.free_bytes)} free"
        case "fragmentation":
            return f"{tried} <= {_idle(figures)}{_doubt(figures)}"
        case "fragmentation_likely" | "full":
            return _together_line(tried, figures)
    return "" if figures.tried_bytes is None else line


def _size(size: int | None) -> str:
    return "?" if size is None else format_size(size)


def _total(figures: Figures) -> str:
    return f"{_size(figures.total_bytes)} on the card"


def _limit_line(tried: str, held: int, limit: int, figures: Figures) -> str:
    name = "reserved" if figures.reserved is not None else "in use"
    free = "" if figures.free_bytes is None else f"; {_size(figures.free_bytes)} free"
    sign = ">" if held + (figures.tried_bytes or 0) > limit else "~"
    return f"{_size(held)} {name} + {tried} {sign} {_size(limit)} allowed{free}"


def _together_line(tried: str, figures: Figures) -> str:
    free, reach = _size(figures.free_bytes), figures.within_reach
    if figures.free_bytes is None:
        live = _size(figures.allocated_bytes)
        return f"{tried} > {_size(figures.unallocated)} = {_total(figures)} - {live} allocated"
    if reach is None:
        return f"{tried} > {free} free"
    sign = "<=" if figures.tried_bytes is not None and figures.tried_bytes <= reach else ">"
    idle = _size(figures.idle)
    return f"{tried} {sign} {_size(reach)} = {idle} idle + {free} free{_doubt(figures)}"


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
    parts = [figures.idle_bytes]
    if figures.idle_bytes is None:
        parts = [figures.reserved_bytes, figures.allocated_bytes]
    bounds = [(idle, figures.doubt(tried, *parts))]
    if reach is not None:
        bounds.append((reach, figures.doubt(tried, figures.free_bytes, *parts)))
    close = [doubt for size, doubt in bounds if abs(size - tried) < doubt]
    return f" (+- {_size(round(max(close)))}: the text is rounded)" if close else ""
