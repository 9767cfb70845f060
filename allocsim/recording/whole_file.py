"""Write a file so that it is complete or not changed at all.

The data is written to a temporary file in the same folder, which replaces the target at the end.
After an error the target is unchanged and the temporary file is deleted.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield an open temporary file that replaces the file at `path` at the end of the block.

    If `path` is a symbolic link, its target is replaced.  Raises OSError if writing fails.
    """
    place = Path(path).resolve()
    beside = place.with_name(f".{place.name[:200]}.{os.getpid()}.part")
    try:
        with beside.open("xb") as file:
            yield file
        beside.replace(place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextmanager
def packed_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a file as `whole_file` does, compressed if `path` ends in .gz.

    The gzip header has no timestamp, so equal contents give equal bytes.
    """
    with whole_file(path) as file:
        if not os.fspath(path).endswith(".gz"):
            yield file
            return
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            yield cast(BinaryIO, packed)
