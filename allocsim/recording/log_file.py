"""Read the log of a program as text, in any supported compression and encoding.

A pipe is read only once, because it cannot be rewound.  At most `LONGEST_LOG` bytes of a compressed
file are unpacked.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import BinaryIO

from allocsim.errors import RecordingError
from allocsim.recording.packings import Packing, unpacked
from allocsim.recording.source import is_recording, packing_in

__all__ = ["LONGEST_LOG", "decoded", "read_log"]

LONGEST_LOG = 1 << 28
"""Largest log that is read, in bytes."""

_HEAD = 1 << 20
_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_log(path: str) -> str | None:
    """Return the text of the log at `path`; None if the file is a recording.

    Raises RecordingError if the file is not text or cannot be read.
    """
    try:
        return _read(path)
    except OSError as error:
        raise RecordingError(path, f"cannot be read ({error.strerror or error})") from None


def _read(path: str) -> str | None:
    with Path(path).open("rb") as file:
        packing = packing_in(file) if file.seekable() else None
        if packing is not None:
            head = _unpacked(path, packing, file, _HEAD)
            if is_recording(head):
                return None
            return decoded(_unpacked(path, packing, file, LONGEST_LOG + 1), path)
        if file.seekable():
            file.seek(0)
        head = file.read(_HEAD)
        if is_recording(head):
            return None
        return decoded(head + file.read(LONGEST_LOG + 1 - len(head)), path)


def _unpacked(path: str, packing: Packing, file: BinaryIO, enough: int) -> bytes:
    """Return the first `enough` unpacked bytes of a compressed file."""
    with unpacked(path, packing, file, lambda _: None, enough) as plain:
        return plain.read(enough)


def decoded(log: bytes, name: str) -> str:
    """Return the text of a log, decoded as UTF-8, or as UTF-16, which Windows shells write.

    name: file name for error messages.
    Raises RecordingError if the log is not text, is too long or is empty.
    """
    if len(log) > LONGEST_LOG:
        raise RecordingError(name, f"has more than {LONGEST_LOG} bytes; cut the error out of it")
    if not log.strip():
        raise RecordingError(name, "is empty; expected an error's text")
    if is_recording(log[:_HEAD]):
        raise RecordingError(name, "is no text; give the recording's file as an argument")
    if log.startswith(_BOMS):
        return log.decode("utf-16", "replace")
    if b"\0" in log:
        raise RecordingError(name, "is neither text nor a recording")
    return log.decode("utf-8-sig", "replace")
