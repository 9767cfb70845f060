"""The comparison that decided a cause, in one line of figures.

Rule: it shows the figures that the cause rests on and no others, as PyTorch prints sizes, and
says where rounding of the text leaves the comparison open.
"""

from __future__ import annotations

from collections.abc import Callable

from allocsim.analysis.cause import Figures
from allocsim.units import format_size

__all__ = ["arithmetic_of"]


def arithmetic_of(cause: str, figures: Figures) -> str:
    """One line, such as "2.87 GiB tried <= 4.94 GiB idle"; "" where there is nothing to show."""
    return _LINES[cause](figures)


def _size(size: int | None) -> str:
    return "?" if size is None else format_size(size)


def _impossible(figures: Figures) -> str:
    if figures.tried_bytes is None or figures.total_bytes is None:
        return ""
    return f"{_size(figures.tried_bytes)} tried > {_size(figures.total_bytes)} on the card"


def _host_fallback(figures: Figures) -> str:
    return f"{_size(figures.allocated_bytes)} allocated > {_size(figures.total_bytes)} on the card"


def _fraction_limit(figures: Figures) -> str:
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


def _free_above_request(figures: Figures) -> str:
    return f"{_size(figures.tried_bytes)} tried <= {_size(figures.free_bytes)} free"


def _fragmentation(figures: Figures) -> str:
    return f"{_size(figures.tried_bytes)} tried <= {_idle(figures)}{_doubt(figures)}"


def _together(figures: Figures) -> str:
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


def _no_figures(figures: Figures) -> str:
    return "" if figures.tried_bytes is None else f"{_size(figures.tried_bytes)} tried"


_LINES: dict[str, Callable[[Figures], str]] = {
    "impossible": _impossible,
    "host_fallback": _host_fallback,
    "fraction_limit": _fraction_limit,
    "free_above_request": _free_above_request,
    "fragmentation": _fragmentation,
    "fragmentation_likely": _together,
    "full": _together,
    "no_figures": _no_figures,
}
