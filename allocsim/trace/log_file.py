"""A log of unknown origin as text: whatever it is packed by, whatever its encoding, never too long.

Rule: what is a recording is not read as text, and a file that can be read only once (a pipe) is
read once.  Of a packed file no more is unpacked than a log may have.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import BinaryIO

from allocsim.errors import RecordingError
from allocsim.trace.packings import Packing, unpacked
from allocsim.trace.source import is_recording, packing_in

__all__ = ["LONGEST_LOG", "decoded", "read_log"]

LONGEST_LOG = 1 << 28
"""Bytes of a log: more is the log of another day, in which nobody looks for one error."""

_HEAD = 1 << 20
_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_log(path: str) -> str | None:
    """The text of the log at `path`; None for a recording, of which only the beginning is read.

    Raises RecordingError for what is no text, and for what cannot be read.
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
    """The first `enough` bytes of what a file holds, whatever they are."""
    with unpacked(path, packing, file, lambda _: None, enough) as plain:
        return plain.read(enough)


def decoded(log: bytes, name: str) -> str:
    """The bytes of a log as text; Windows shells write UTF-16.

    name: for errors.  Raises RecordingError for what is no text, too long or empty.
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
