"""Find recordings in a folder by file name, without opening files.

A file that the user names directly may have any name, since `load` inspects its contents.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ENDINGS", "recordings_in"]

ENDINGS = (".pickle", ".pkl", ".json", ".npz")
"""File name endings of recordings; .gz, .xz, .zst or .zip may follow."""
_PACKED = (".gz", ".xz", ".zst", ".zip")


def recordings_in(folder: Path) -> list[Path]:
    """Return the paths of the recordings in `folder` and its subfolders, sorted.

    The list is empty if the folder does not exist.
    """
    return sorted(filter(_is_recording, folder.rglob("*")), key=str)


def _is_recording(path: Path) -> bool:
    name = path.with_suffix("").name if path.suffix in _PACKED else path.name
    return name.endswith(ENDINGS) and path.is_file()
