"""Which PyTorch releases can have written a recording, told from what it holds.

A marker that is there cannot come from a release before its first.  A marker that is not there
rules out its first release and all later ones, but only if they write it always (`always`) and
the place where it stands (`where`) is in the file: a trace without entries says nothing about
the keys of entries.  The 2.0 layout (blocks with `history`) stands on its own.
Sources: semantics 6.3, 6.5 and 9; that 2.11.0 writes no pool_id was seen in recordings.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

__all__ = ["RELEASES", "MARKERS", "Marker", "markers_in", "releases_of"]

RELEASES = ("2.0", *(f"2.{minor}" for minor in range(1, 16)))
"""The releases that a recording can come from, oldest first."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A trait of a recording: its name, where it stands, and the first release with it."""

    name: str
    where: str
    since: str
    always: bool


MARKERS = (
    #      name                                where       since   always
    Marker("segment_pool_id", "segments", "2.1", True),
    Marker("action segment_map", "entries", "2.1", False),
    Marker("action segment_unmap", "entries", "2.1", False),
    Marker("time_us", "entries", "2.2", True),
    Marker("allocator_settings", "snapshot", "2.3", True),
    Marker("external_annotations", "snapshot", "2.5", True),
    Marker("compile_context", "entries", "2.8", True),
    Marker("graph_capture_record_stream_reuse", "settings", "2.9", True),
    Marker("user_metadata", "entries", "2.10", True),
    Marker("pool_id", "entries", "2.12", True),
    Marker("max_round_threshold", "settings", "2.13", True),
    Marker("host_segments", "snapshot", "2.14", True),
    Marker("action annotate", "entries", "2.14", False),
    Marker("internal_metadata", "entries", "2.15", False),
)


def markers_in(where: str) -> tuple[str, ...]:
    """Names of the markers that stand in `where`; an action's begin with "action "."""
    return tuple(marker.name for marker in MARKERS if marker.where == where)


def releases_of(present: Set[str]) -> tuple[str, ...]:
    """The releases that can have written a file with these markers; empty if they contradict.

    present: names of markers and of places ("segments", "entries", "snapshot", "settings").
    """
    lowest, highest = 0, len(RELEASES) - 1
    for marker in MARKERS:
        since = RELEASES.index(marker.since)
        if marker.name in present:
            lowest = max(lowest, since)
        elif marker.always and marker.where in present:
            highest = min(highest, since - 1)
    return RELEASES[lowest : highest + 1]
