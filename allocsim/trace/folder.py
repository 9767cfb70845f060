"""Which files in a folder are recordings, told by their names alone.

Rule: no file is opened.  One that is named may have any name, since `load` looks at what it holds.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ENDINGS", "recordings_in"]

ENDINGS = (".pickle", ".pkl", ".json", ".npz")
"""What the names of recordings end in, before the ending of one that is packed."""
_PACKED = (".gz", ".xz", ".zst", ".zip")


def recordings_in(folder: Path) -> list[Path]:
    """The recordings in a folder and below, by their names; none where there is no folder."""
    return sorted(filter(_is_recording, folder.rglob("*")), key=str)


def _is_recording(path: Path) -> bool:
    name = path.with_suffix("").name if path.suffix in _PACKED else path.name
    return name.endswith(ENDINGS) and path.is_file()
