"""Read the operations of a pickle of protocol 4 or 5 in pieces of 1 MiB, without frame headers.

Python's pickler divides a pickle into frames, each with its length in front.  The frames follow one
another, so their positions follow from their lengths.  No operation may cross the start of a frame.
A file that Python's pickler would not write raises `OtherForm`, and `unpickle` decides whether it
is valid.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from typing import BinaryIO

PAD = 64
"""Zero bytes after the data, so that reads beyond its end find no operation."""

_STRETCH = 1 << 20
_RESERVE = 1 << 16
_FRAME = 0x95
_HEADER = 9


class OtherForm(Exception):  # noqa: N818  (no error: the file is read another way)
    """Exception for a file that is not read directly to columns, but as Python objects."""


class Window:
    """Part of a pickle that moves forward through the file.

    data: operations, followed by PAD zero bytes.
    end: position in `data` where the operations end.
    seams: positions in `data` where frames begin.
    soft_end: position in `data` from which on the caller should call `more`.
    """

    __slots__ = ("data", "end", "seams", "soft_end", "_file", "_in_frame", "_left")

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = file.seek(0, os.SEEK_END) - 2
        file.seek(0)
        head = file.read(2)
        if head not in (b"\x80\x04", b"\x80\x05"):
            raise OtherForm("an older protocol")
        self._in_frame = 0
        self.data, self.end, self.soft_end = bytes(PAD), 0, 0
        self.seams: list[int] = []
        self.more(0)

    def more(self, at: int) -> None:
        """Read more data and drop the data before position `at`, which becomes position 0."""
        parts = [self.data[at : self.end]]
        have = len(parts[0])
        self.seams = [seam - at for seam in self.seams if seam >= at]
        goal = max(_STRETCH, have + _RESERVE)
        while have < goal and self._left:
            if not self._in_frame:
                self.seams.append(have)
                self._begin_frame()
            part = self._file.read(min(self._in_frame, goal - have))
            self._in_frame -= len(part)
            self._left -= len(part)
            if not part and self._in_frame:
                raise OtherForm("cut short")
            parts.append(part)
            have += len(part)
        parts.append(bytes(PAD))
        self.data, self.end = b"".join(parts), have
        self.soft_end = max(have - _RESERVE, 1) if self._left else have

    def _begin_frame(self) -> None:
        header = self._file.read(_HEADER)
        length = int.from_bytes(header[1:], "little")
        self._left -= _HEADER
        if len(header) < _HEADER or header[0] != _FRAME or not 0 < length <= self._left:
            raise OtherForm("not in frames")
        self._in_frame = length

    def seam_after(self, begin: int) -> int:
        """Return the first position after `begin` where a frame begins, or the window's end."""
        at = bisect_left(self.seams, begin + 1)
        return self.seams[at] if at < len(self.seams) else self.end
