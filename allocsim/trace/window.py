"""The operations of a pickle of protocol 4 or 5, a stretch at a time and without its frames.

Rule: little more than a stretch is in memory, whatever lengths the file declares.  Whatever is not
as Python's own pickler writes it is `OtherForm`: sound or hostile, which is for `unpickle` to say.

A frame is a hint of how many bytes to read at once.  Python's pickler writes them end to end, so
they are told by their lengths; `seams` are the places in `data` where one begins, because no
operation may cross them.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from typing import BinaryIO

__all__ = ["PAD", "OtherForm", "Window"]

PAD = 64
"""Zeros behind the last byte, so that a look beyond it meets no operation."""

_STRETCH = 1 << 20
_RESERVE = 1 << 16
_FRAME = 0x95
_HEADER = 9


class OtherForm(Exception):  # noqa: N818  (no error: the file is read another way)
    """The file is not in the one form that is read straight to columns."""


class Window:
    """data: a stretch and PAD zeros; end: where its operations end; soft_end: ask for `more` from
    there on."""

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
        """Let go of what lies before `at`, which becomes 0, and read on."""
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
        """The first place behind `begin` where a frame begins, or the end of the window."""
        at = bisect_left(self.seams, begin + 1)
        return self.seams[at] if at < len(self.seams) else self.end
