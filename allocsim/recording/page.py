"""Read the snapshot in a web page that `python -m torch.cuda._memory_viz trace_plot` wrote.

The page is not executed.  The pickle of the snapshot is base64 text under the key "base64".  It
is decoded to a temporary file.
"""

from __future__ import annotations

import base64
import binascii
import mmap
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from allocsim.errors import RecordingError

__all__ = ["snapshot_in_page"]

_SNAPSHOT = re.compile(rb'"base64"\s*:\s*"([A-Za-z0-9+/=]*)"')
_PIECE = 1 << 22  # a multiple of 4: base64 has 4 characters for 3 bytes
_KNOWN = (
    (
        rb"GPU Memory Timeline HTML",
        "is the page of PyTorch's memory timeline, a picture without numbers; export the rows: "
        "export_memory_timeline('timeline.raw.json.gz')",
    ),
    (
        rb"\$PLOT_DATA|alloc_data\s*=|MemoryViz",
        "is a page of _memory_viz without the snapshot in it; give the snapshot that it was made "
        "of",
    ),
    (
        rb": allocsim report</title>",
        "is a page that allocsim wrote; give the recording that it is about",
    ),
)


@contextmanager
def snapshot_in_page(path: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the pickle in the page at `path`, as a temporary file open at its start.

    Raises RecordingError if the page does not contain exactly one snapshot.
    """
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = _SNAPSHOT.search(data)
        if found is None:
            for words, what in _KNOWN:
                if re.search(words, data):
                    raise RecordingError(path, what)
            raise RecordingError(path, "is a web page or XML file, expected a PyTorch snapshot")
        with tempfile.TemporaryFile() as pickled:
            first, last = found.span(1)
            if _SNAPSHOT.search(data, last) is not None:
                raise RecordingError(path, "is a page with several snapshots, expected one")
            try:
                for at in range(first, last, _PIECE):
                    piece = data[at : min(at + _PIECE, last)]
                    pickled.write(base64.b64decode(piece, validate=True))
            except binascii.Error:
                raise RecordingError(path, "is a page whose snapshot is damaged") from None
            if not pickled.tell():
                raise RecordingError(path, "is a page with an empty snapshot")
            pickled.seek(0)
            del found  # a mmap cannot be closed while a match object refers to it
            yield cast(BinaryIO, pickled)
