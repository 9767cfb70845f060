"""Pareto front of settings: reserved memory, driver calls and retries.

Setting A dominates setting B if no number of A is worse and at least one is better.  The numbers
only grow during a replay, so a replay that is dominated half-way can be given up.
"""

from __future__ import annotations

from collections.abc import Iterable

from allocsim.replaying import Point


def dominates(better: Point, worse: Point) -> bool:
    """Return True if `better` is worse than `worse` in no number and better in one or more."""
    return (
        better.memory <= worse.memory
        and better.calls <= worse.calls
        and better.retries <= worse.retries
        and better != worse
    )


Bar = tuple[tuple[Point, bool], ...]
"""Points of finished replays, each with True if it wins against a setting with equal numbers."""


def is_hopeless(bar: Bar, so_far: Point) -> bool:
    """Return True if a replay with the numbers `so_far` cannot be on the front or be chosen.

    bar: points of the replays that finished before.
    """
    return any(dominates(p, so_far) or (loses and p == so_far) for p, loses in bar)


def front(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the distinct points that no other point dominates, in order of memory."""
    distinct = sorted(set(points))
    return tuple(p for p in distinct if not any(dominates(other, p) for other in distinct))
