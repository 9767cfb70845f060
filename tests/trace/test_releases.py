"""The table of markers: what narrows the range of releases, and what must not."""

from __future__ import annotations

from allocsim.trace import RELEASES, releases_of
from allocsim.trace.load import read_snapshot
from allocsim.trace.releases import MARKERS
from tests.trace.history import History, training_step


def test_markers_are_in_order_of_release() -> None:
    order = [RELEASES.index(marker.since) for marker in MARKERS]
    assert order == sorted(order)


def test_nothing_known_excludes_nothing() -> None:
    assert releases_of(set()) == RELEASES


def test_a_missing_place_says_nothing_about_its_markers() -> None:
    assert releases_of({"segments", "segment_pool_id", "snapshot"}) == ("2.1", "2.2")
    assert releases_of({"segments", "segment_pool_id"}) == RELEASES[1:]


def test_a_marker_written_at_times_only_raises_the_lower_bound() -> None:
    entries = {"entries", "time_us", "compile_context", "user_metadata", "pool_id"}
    assert releases_of(entries) == ("2.12", "2.13", "2.14", "2.15")
    assert releases_of(entries | {"internal_metadata"}) == ("2.15",)
    assert releases_of({"action segment_map"}) == RELEASES[1:]


def test_contradicting_markers_leave_no_release() -> None:
    assert releases_of({"snapshot", "external_annotations"}) == ()


def test_a_trace_without_entries_tells_less() -> None:
    empty = read_snapshot("x", History().snapshot("2.10"), 1000)
    assert empty.releases == ("2.9", "2.10", "2.11", "2.12")
    full = read_snapshot("x", training_step().snapshot("2.10"), 10_000)
    assert full.releases == ("2.10", "2.11")
