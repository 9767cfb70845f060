"""Write a recording in the format that the file name shows.

Equal recordings give equal bytes; gzip files have no timestamp.
"""

from __future__ import annotations

import os

from allocsim.recording import Recording, write_npz, write_snapshot

__all__ = ["SUFFIXES", "write_recording"]

SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".npz")
"""Supported file name endings.  PyTorch's viewer opens pickles; `.npz` loads fastest."""


def write_recording(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write `recording` to `path`, replacing any file there.

    Raises ValueError if the name ends in none of `SUFFIXES`, and OSError if writing fails.
    """
    name = os.fspath(path)
    if not name.endswith(SUFFIXES):
        raise ValueError(f"{name} ends in none of {', '.join(SUFFIXES)}")
    write = write_npz if name.endswith(".npz") else write_snapshot
    write(recording, name)
