"""A recording written to a file, in the format that the file's name says.

Rule: the same recording gives the same bytes; a gzip file holds no time.
"""

from __future__ import annotations

import os

from allocsim.trace import Recording, write_npz, write_snapshot

__all__ = ["SUFFIXES", "write_recording"]

SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".npz")
"""What a name may end in.  Pickles open in PyTorch's own viewer; `.npz` loads fastest."""


def write_recording(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write `recording` to `path`, in place of any file there.

    Raises ValueError for a name that ends in none of `SUFFIXES`, OSError as the system does.
    """
    name = os.fspath(path)
    if not name.endswith(SUFFIXES):
        raise ValueError(f"{name} ends in none of {', '.join(SUFFIXES)}")
    write = write_npz if name.endswith(".npz") else write_snapshot
    write(recording, name)
