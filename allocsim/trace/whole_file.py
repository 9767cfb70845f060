"""A file that is written whole or not at all.

Rule: what is written goes into a file of another name in the same folder, which takes the place of
the old one when all of it is there.  An error on the way leaves the old one as it was, and nothing
beside it.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

__all__ = ["packed_file", "whole_file"]


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The file to write to, which becomes `path` at the end of the block.

    Raises OSError as the system does; a link keeps pointing to what it points to.
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
    """As `whole_file`; a name that ends in .gz is packed, without a time: equal contents give equal
    bytes."""
    with whole_file(path) as file:
        if not os.fspath(path).endswith(".gz"):
            yield file
            return
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            yield cast(BinaryIO, packed)
