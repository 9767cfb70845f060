"""Which PyTorch releases can have written a recording, by what it holds.

`LAYOUTS` has a row for each release and names only what came with it, so that a new release is a
new row.  What their allocators do is in `core/releases.py`.

A marker that is there rules out the releases before its first.  A marker that is not there rules
out its first release and all later ones, but only if they write it always (`always`) and its place
(`where`) is in the file: a trace without entries says nothing about the keys of entries.
Sources: semantics 6.3, 6.5 and 9; that 2.11.0 writes no pool_id was seen in recordings.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

__all__ = ["RELEASES", "Layout", "Marker", "markers_in", "releases_of", "unrounded_until"]


@dataclass(frozen=True, slots=True)
class Marker:
    """A trait of a recording: its name, its place, and whether it is always written."""

    name: str
    where: str
    always: bool = True


@dataclass(frozen=True, slots=True)
class Layout:
    """What the recordings of one release hold that those before it do not."""

    release: str
    markers: tuple[Marker, ...] = ()
    is_unrounded: bool = False
    """roundup_power2_divisions:1 leaves sizes, and so addresses, unrounded."""


LAYOUTS = (
    Layout("2.0", is_unrounded=True),
    Layout(
        "2.1",
        (
            Marker("segment_pool_id", "segments"),
            Marker("action segment_map", "entries", always=False),
            Marker("action segment_unmap", "entries", always=False),
        ),
        is_unrounded=True,
    ),
    Layout("2.2", (Marker("time_us", "entries"),), is_unrounded=True),
    Layout("2.3", (Marker("allocator_settings", "snapshot"),), is_unrounded=True),
    Layout("2.4"),
    Layout("2.5", (Marker("external_annotations", "snapshot"),)),
    Layout("2.6"),
    Layout("2.7"),
    Layout("2.8", (Marker("compile_context", "entries"),)),
    Layout("2.9", (Marker("graph_capture_record_stream_reuse", "settings"),)),
    Layout("2.10", (Marker("user_metadata", "entries"),)),
    Layout("2.11"),
    Layout("2.12", (Marker("pool_id", "entries"),)),
    Layout("2.13", (Marker("max_round_threshold", "settings"),)),
    Layout(
        "2.14",
        (Marker("host_segments", "snapshot"), Marker("action annotate", "entries", always=False)),
    ),
    Layout("2.15", (Marker("internal_metadata", "entries", always=False),)),
)
"""One row a release, the oldest first."""

RELEASES = tuple(layout.release for layout in LAYOUTS)
"""The releases that a recording can come from, oldest first."""


def markers_in(where: str) -> tuple[str, ...]:
    """Names of the markers that stand in `where`; an action's begin with "action "."""
    return tuple(
        marker.name for layout in LAYOUTS for marker in layout.markers if marker.where == where
    )


def releases_of(present: Set[str]) -> tuple[str, ...]:
    """The releases that can have written a file with these markers; empty if they contradict.

    present: names of markers and of places ("segments", "entries", "snapshot", "settings").
    """
    lowest, highest = 0, len(LAYOUTS) - 1
    for since, layout in enumerate(LAYOUTS):
        for marker in layout.markers:
            if marker.name in present:
                lowest = max(lowest, since)
            elif marker.always and marker.where in present:
                highest = min(highest, since - 1)
    return RELEASES[lowest : highest + 1]


def unrounded_until(releases: tuple[str, ...]) -> str | None:
    """The newest release whose sizes may be unrounded; None where none of `releases` is such."""
    unrounded = [layout.release for layout in LAYOUTS if layout.is_unrounded]
    return unrounded[-1] if set(unrounded) & set(releases) else None
