"""Detect which PyTorch releases can have written a recording, from its fields.

A marker is a field or action that PyTorch writes since some release.  `LAYOUTS` lists the new
markers of each release.  Differences between the allocators are in `core/releases.py`.

A marker in the file rules out all releases older than the marker.  A missing marker rules out the
release that introduced it and all later ones, if those releases always write it and the file has
the part that would contain it.  For example, a file without entries says nothing about the fields
of entries.
Sources: semantics 6.3, 6.5 and 9; recordings show that 2.11.0 writes no pool_id.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marker:
    """Field or action that PyTorch writes since some release.

    name: name of the field, or "action " and the name of the action.
    where: part of the file that has it: "segments", "entries", "snapshot" or "settings".
    always: True if each of these parts has the marker, in all releases since it was introduced.
    """

    name: str
    where: str
    always: bool = True


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Markers that one release of PyTorch introduced."""

    release: str
    markers: tuple[Marker, ...] = ()
    is_unrounded: bool = False
    """True if roundup_power2_divisions:1 leaves sizes, and therefore addresses, unrounded."""


LAYOUTS = (
    FileLayout("2.0", is_unrounded=True),
    FileLayout(
        "2.1",
        (
            Marker("segment_pool_id", "segments"),
            Marker("action segment_map", "entries", always=False),
            Marker("action segment_unmap", "entries", always=False),
        ),
        is_unrounded=True,
    ),
    FileLayout("2.2", (Marker("time_us", "entries"),), is_unrounded=True),
    FileLayout("2.3", (Marker("allocator_settings", "snapshot"),), is_unrounded=True),
    FileLayout("2.4"),
    FileLayout("2.5", (Marker("external_annotations", "snapshot"),)),
    FileLayout("2.6"),
    FileLayout("2.7"),
    FileLayout("2.8", (Marker("compile_context", "entries"),)),
    FileLayout("2.9", (Marker("graph_capture_record_stream_reuse", "settings"),)),
    FileLayout("2.10", (Marker("user_metadata", "entries"),)),
    FileLayout("2.11"),
    FileLayout("2.12", (Marker("pool_id", "entries"),)),
    FileLayout("2.13", (Marker("max_round_threshold", "settings"),)),
    FileLayout(
        "2.14",
        (Marker("host_segments", "snapshot"), Marker("action annotate", "entries", always=False)),
    ),
    FileLayout("2.15", (Marker("internal_metadata", "entries", always=False),)),
)
"""One row per release, oldest first."""

RELEASES = tuple(layout.release for layout in LAYOUTS)
"""Releases that a recording can come from, oldest first."""


def markers_in(where: str) -> tuple[str, ...]:
    """Return the names of the markers in one part of a file.

    where: "segments", "entries", "snapshot" or "settings".
    """
    return tuple(
        marker.name for layout in LAYOUTS for marker in layout.markers if marker.where == where
    )


def layout_releases(present: Set[str]) -> tuple[str, ...]:
    """Return the releases that can have written a file with these markers, oldest first.

    present: names of the markers in the file, and of its parts that are not empty ("segments",
        "entries", "snapshot", "settings").
    The result is empty if the markers contradict each other.
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
    """Return the newest release of PyTorch that can leave block sizes unrounded.

    Return None if none of `releases`, which can have written the file, does so.
    """
    unrounded = [layout.release for layout in LAYOUTS if layout.is_unrounded]
    return unrounded[-1] if set(unrounded) & set(releases) else None
