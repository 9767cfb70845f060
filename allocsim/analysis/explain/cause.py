"""Cause of an out-of-memory error, from its sizes alone.

Each cause in `MESSAGE_CAUSES` has a comparison of sizes, and the first comparison that holds gives
the cause.  A comparison with an unknown size does not hold.  PyTorch prints rounded sizes, so a
size counts as larger only if it exceeds the other by more than the rounding error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

from allocsim.units import GIB, KIB, MIB, format_size

_LEAST_IDLE = 200  # idle memory below 1/200 of the reserved memory is not called fragmentation


@dataclass(frozen=True, slots=True)
class Figures:
    """Sizes that describe an out-of-memory error, in bytes; a size is None if it is not known.

    tried_bytes: size that PyTorch failed to allocate: a new segment, or the request itself.
    total_bytes, free_bytes: total and free memory of the device.
    reserved_bytes, idle_bytes: memory that PyTorch holds, and its unallocated part; an error text
        prints one of them.
    limit_bytes: largest number of bytes that PyTorch may reserve.
    process_bytes: memory that the process with the error holds on the device.
    pool_bytes: part of allocated_bytes in private pools.
    others_bytes: memory of the other processes that an error text lists.
    largest_bytes: size above which the device refuses a single allocation.
    printed: True if the sizes are read from a text, where PyTorch rounds them to two decimals.
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
    others_bytes: int | None = None
    largest_bytes: int | None = None
    printed: bool = False

    @property
    def reserved(self) -> int | None:
        """Reserved bytes, as printed in the text or computed as allocated plus idle bytes."""
        if self.reserved_bytes is not None:
            return self.reserved_bytes
        if self.allocated_bytes is None or self.idle_bytes is None:
            return None
        return self.allocated_bytes + self.idle_bytes

    @property
    def idle(self) -> int | None:
        if self.idle_bytes is not None:
            return self.idle_bytes
        if self.allocated_bytes is None or self.reserved_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)

    @property
    def idle_and_free(self) -> int | None:
        idle = self.idle
        return None if idle is None or self.free_bytes is None else idle + self.free_bytes

    @property
    def is_contradictory(self) -> bool:
        total, free = self.total_bytes, self.free_bytes
        return total is not None and free is not None and free - total > self.doubt(total, free)

    @property
    def capacity(self) -> int | None:
        """Total memory of the device; None if the total is unknown or contradicts free memory."""
        return None if self.is_contradictory else self.total_bytes

    @property
    def unallocated(self) -> int | None:
        if self.capacity is None or self.allocated_bytes is None:
            return None
        return max(0, self.capacity - self.allocated_bytes)

    @property
    def has_little_idle(self) -> bool:
        idle, reserved = self.idle, self.reserved
        return idle is not None and reserved is not None and idle * _LEAST_IDLE < reserved

    @property
    def limited(self) -> int | None:
        """Bytes that count against a memory limit; None if unknown.

        The value is `reserved`; if that is unknown, `process_bytes`, or else `allocated_bytes`.
        """
        held = (self.reserved, self.process_bytes, self.allocated_bytes)
        return next((size for size in held if size is not None), None)

    @property
    def limit_below_capacity(self) -> int | None:
        limit, total = self.limit_bytes, self.total_bytes
        return limit if limit is not None and (total is None or limit < total) else None

    def doubt(self, *values: int | None) -> float:
        """Return the largest rounding error, in bytes, of the sum of some sizes; 0 if exact."""
        return sum(rounding_of(value) for value in values if value) if self.printed else 0


def rounding_of(size: int) -> float:
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
    "host_memory",
    "no_figures",
)
"""Names of the causes of an error in a text.

All but the last two are tested by comparing sizes, in this order; "no_figures" if no test holds.
"""


def cause_of(figures: Figures) -> str:
    comparisons = () if figures.tried_bytes is None else _comparisons(figures)
    proved = (cause for cause, holds in zip(MESSAGE_CAUSES, comparisons, strict=False) if holds)
    return next(proved, "no_figures")


def _comparisons(figures: Figures) -> Iterator[bool]:
    # An unknown size is nan, so every comparison with it is False.
    tried, capacity = _known(figures.tried_bytes), _known(figures.capacity)
    free = _known(figures.free_bytes)
    yield tried > capacity or tried > _known(figures.largest_bytes)
    yield _size_over_capacity(figures) is not None
    yield _known(figures.limited) + tried > _known(figures.limit_below_capacity)
    # One byte of tolerance, since the rounding errors are rounded themselves.
    yield free - tried >= max(0, figures.doubt(figures.tried_bytes, figures.free_bytes) - 1)
    yield not figures.has_little_idle and _known(figures.idle) >= tried
    yield not figures.has_little_idle and _known(figures.idle_and_free) >= tried
    # If idle memory is unknown (asynchronous backend, log lines), the card counts as full.
    yield figures.free_bytes is not None or tried > _known(figures.unallocated)


def _size_over_capacity(figures: Figures) -> str | None:
    for name, size in (("allocated", figures.allocated_bytes), ("reserved", figures.reserved)):
        over = _known(size) - _known(figures.capacity)
        if over > 0 and over >= figures.doubt(size, figures.capacity):
            return f"{_size(size)} {name}"
    return None


def _known(size: int | None) -> float:
    return nan if size is None else size


def arithmetic_of(cause: str, figures: Figures) -> str:
    """Return the comparison that proves `cause`, such as "2 GiB tried <= 4 GiB idle".

    For a cause without a comparison, return the tried size alone; "" if a size is unknown.
    """
    line = tried = f"{_size(figures.tried_bytes)} tried"
    match cause:
        case "impossible":
            line = _too_large_line(tried, figures)
        case "host_fallback":
            return f"{_size_over_capacity(figures)} > {_total(figures)}"
        case "fraction_limit" if (
            figures.limit_below_capacity is not None and figures.limited is not None
        ):
            return _limit_line(tried, figures.limited, figures.limit_below_capacity, figures)
        case "free_above_request":
            return f"{tried} <= {_size(figures.free_bytes)} free"
        case "fragmentation":
            return f"{tried} <= {_idle(figures)}{_doubt(figures)}"
        case "fragmentation_likely" | "full":
            return _together_line(tried, figures)
    return "" if figures.tried_bytes is None else line


def _too_large_line(tried: str, figures: Figures) -> str:
    if figures.largest_bytes is not None:
        return f"{tried} > {_size(figures.largest_bytes)}, the most that one allocation may have"
    return "" if figures.total_bytes is None else f"{tried} > {_total(figures)}"


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
    free, reach = _size(figures.free_bytes), figures.idle_and_free
    limit, held = figures.limit_bytes, figures.limited
    if figures.free_bytes is None and figures.capacity is None and limit and held:
        return f"{_size(held)} in use + {tried} > {_size(limit)} allowed"
    if figures.free_bytes is None:
        live = _size(figures.allocated_bytes)
        return f"{tried} > {_size(figures.unallocated)} = {_total(figures)} - {live} allocated"
    if reach is None:
        return f"{tried} > {free} free"
    sign = "<=" if figures.tried_bytes is not None and figures.tried_bytes <= reach else ">"
    idle, reserved = _size(figures.idle), figures.reserved
    line = f"{tried} {sign} {_size(reach)} = {idle} idle + {free} free{_doubt(figures)}"
    if sign == "<=" and reserved and figures.has_little_idle:
        line += f"; only {(figures.idle or 0) / reserved:.1%} of {_size(reserved)} is idle"
    return line


def _idle(figures: Figures) -> str:
    if figures.idle_bytes is not None:
        return f"{_size(figures.idle_bytes)} idle"
    reserved, allocated = _size(figures.reserved_bytes), _size(figures.allocated_bytes)
    return f"{_size(figures.idle)} idle = {reserved} reserved - {allocated} allocated"


def _doubt(figures: Figures) -> str:
    tried, idle, reach = figures.tried_bytes, figures.idle, figures.idle_and_free
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
