"""The outcomes that no other dominates: memory against driver calls against retries.

Rule: a point is dominated if another is nowhere worse and somewhere better.  All three figures
only grow while a replay runs, so one that is dominated half-way is dominated at its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from allocsim.engine import Point

__all__ = ["Bar", "dominates", "front", "is_hopeless"]


def dominates(better: Point, worse: Point) -> bool:
    """Whether `better` is nowhere worse than `worse`, and somewhere better."""
    return (
        better.memory <= worse.memory
        and better.calls <= worse.calls
        and better.retries <= worse.retries
        and better != worse
    )


Bar = tuple[tuple[Point, bool], ...]
"""Points of finished settings; with each, whether a tie with it is lost (see `Row.rank`)."""


def is_hopeless(bar: Bar, so_far: Point) -> bool:
    """Whether a replay with the figures `so_far` can neither win nor be on the front."""
    return any(dominates(p, so_far) or (loses and p == so_far) for p, loses in bar)


def front(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points that none dominates, by ascending memory; of equals one."""
    distinct = sorted(set(points))
    return tuple(p for p in distinct if not any(dominates(other, p) for other in distinct))
