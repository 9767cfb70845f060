"""Pareto front over memory, driver calls and retries.

A point is dominated if another point is not worse in any figure and better in at least one.  All
figures only grow during a replay, so a point that is dominated half-way is dominated at the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from allocsim.replaying import Point

__all__ = ["Bar", "dominates", "front", "is_hopeless"]


def dominates(better: Point, worse: Point) -> bool:
    """Return True if `better` is not worse than `worse` in any figure and better in one."""
    return (
        better.memory <= worse.memory
        and better.calls <= worse.calls
        and better.retries <= worse.retries
        and better != worse
    )


Bar = tuple[tuple[Point, bool], ...]
"""Points of finished settings, each with True if a tie with it is lost (see `SettingRow.rank`)."""


def is_hopeless(bar: Bar, so_far: Point) -> bool:
    """Return True if a replay with the figures `so_far` can neither win nor be on the front."""
    return any(dominates(p, so_far) or (loses and p == so_far) for p, loses in bar)


def front(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the points that no other dominates, by ascending memory, without duplicates."""
    distinct = sorted(set(points))
    return tuple(p for p in distinct if not any(dominates(other, p) for other in distinct))
