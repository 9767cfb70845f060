"""Markers that narrow the range of releases."""

from __future__ import annotations

from allocsim.recording import RELEASES, layout_releases
from allocsim.recording.recording import LAYOUTS
from allocsim.recording.snapshot import read_snapshot
from tests.recording.history import History, training_step


def since(release: str) -> tuple[str, ...]:
    return RELEASES[RELEASES.index(release) :]


def test_layouts_are_ordered_and_each_marker_is_in_one() -> None:
    numbers = [tuple(map(int, layout.release.split("."))) for layout in LAYOUTS]
    assert numbers == sorted(set(numbers))
    names = [marker.name for layout in LAYOUTS for marker in layout.markers]
    assert len(names) == len(set(names))


def test_file_without_markers_can_be_of_any_release() -> None:
    assert layout_releases(set()) == RELEASES


def test_missing_part_allows_all_releases() -> None:
    assert layout_releases({"segments", "segment_pool_id", "snapshot"}) == ("2.1", "2.2")
    assert layout_releases({"segments", "segment_pool_id"}) == RELEASES[1:]


def test_optional_marker_raises_only_the_lower_bound() -> None:
    entries = {"entries", "time_us", "compile_context", "user_metadata", "pool_id"}
    assert layout_releases(entries) == since("2.12")
    assert layout_releases(entries | {"internal_metadata"}) == since("2.15")
    assert layout_releases({"action segment_map"}) == RELEASES[1:]


def test_contradicting_markers_leave_no_release() -> None:
    assert layout_releases({"snapshot", "external_annotations"}) == ()


def test_file_without_entries_leaves_more_releases_possible() -> None:
    empty = read_snapshot("x", History().snapshot("2.10"), 1000)
    assert empty.releases == ("2.9", "2.10", "2.11", "2.12")
    full = read_snapshot("x", training_step().snapshot("2.10"), 10_000)
    assert full.releases == ("2.10", "2.11")
