"""Pareto front of settings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from allocsim.recommend.offer import dominates, front, is_hopeless
from allocsim.replaying import Point

POINTS = st.lists(st.builds(Point, *[st.integers(0, 5)] * 3), max_size=20)


def test_less_memory_for_more_calls_is_a_choice() -> None:
    small, quick = Point(5, 110, 0), Point(8, 71, 0)
    assert front([quick, small, Point(9, 117, 0)]) == (small, quick)


def test_retries_count_separately_on_the_front() -> None:
    assert front([Point(5, 100, 2), Point(6, 100, 0)]) == (Point(5, 100, 2), Point(6, 100, 0))


def test_equal_points_are_one_and_dominate_nothing() -> None:
    point = Point(1, 1, 1)
    assert not dominates(point, point)
    assert front([point, point]) == (point,)


def test_equal_point_is_hopeless_if_the_other_setting_is_simpler() -> None:
    point = Point(5, 100, 0)
    assert is_hopeless(((point, True),), point)
    assert not is_hopeless(((point, False),), point)
    assert is_hopeless(((point, False),), Point(5, 101, 0))
    assert not is_hopeless(((point, True),), Point(5, 99, 0))


@given(POINTS)
def test_point_is_on_the_front_or_dominated_by_the_front(points: list[Point]) -> None:
    best = front(points)
    for point in points:
        assert (point in best) != any(dominates(other, point) for other in best)
