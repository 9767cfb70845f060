"""Open a file of unknown origin and detect its format from its first bytes.

The memory used is small and does not depend on the file: no file is read as a whole, and compressed
files are unpacked to a temporary file (`packings.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from allocsim.errors import RecordingError
from allocsim.recording.named_text import name_of_text
from allocsim.recording.packings import ZIP_MAGIC, Packing, is_archive_of_one, packing_of, unpacked

__all__ = ["HEAD", "Kind", "is_recording", "kind_of", "open_source", "packing_in"]

HEAD = 1 << 16
"""Number of first bytes that the detection uses."""

_MAGIC = 8
_LINES = re.compile(rb"\{[^\n]*\}[ \t\r]*\n\s*\{")
_ROW = re.compile(rb'\{[^\n]*"(?:action|event|op)"', re.IGNORECASE)
_CSV = re.compile(rb"[^\n]*\baction\b[^\n]*(?:\r?\n|$)", re.IGNORECASE)
_SEPARATORS = b",;\t"
_NAMED = re.compile(
    rb'"(?:device_traces|segments|segment_type|traceEvents|action|\[memory\])"', re.IGNORECASE
)
_LIST = re.compile(rb"\[\s*(?:[\[{\"\]]|-?\d[\d.eE+-]*\s*[,\]]|\Z)")
_NUMBERS = re.compile(rb"\[\s*\[\s*-?\d")


class Kind(Enum):
    """Format of a file, detected before its contents are parsed."""

    PICKLE = "pickle"
    JSON = "json"
    LINES = "JSON lines"
    CSV = "csv"
    PAGE = "page"
    ZIP = "zip"


def packing_in(file: BinaryIO) -> Packing | None:
    """Return the compression of an open file; None if it is not compressed.

    A zip archive counts as compressed only if it contains one file.
    """
    packing = packing_of(file.read(_MAGIC))
    if packing is not None and packing.magic == ZIP_MAGIC and not is_archive_of_one(file):
        return None
    return packing


@contextmanager
def open_source(path: str, enough: int | None = None) -> Iterator[BinaryIO]:
    """Yield the file at `path`, open at its start and unpacked if it is compressed.

    enough: number of unpacked bytes that the caller needs; None for the whole file.
    Raises RecordingError if the file is missing, not a regular file, unreadable, or damaged.
    """
    with ExitStack() as files:
        try:
            file = files.enter_context(_regular(path))
            if (packing := packing_in(file)) is not None:
                check = _Plainness(path, packing.name)
                file = files.enter_context(unpacked(path, packing, file, check, enough))
            file.seek(0)
        except FileNotFoundError:
            raise RecordingError(path, "does not exist, expected a recording's file") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise RecordingError(path, f"cannot be read ({reason})") from None
        yield file


def _regular(path: str) -> BinaryIO:
    if Path(path).exists() and not Path(path).is_file():
        # Opening a pipe would wait for its writer.
        what = "a directory" if Path(path).is_dir() else "not a regular file"
        raise RecordingError(path, f"is {what}, expected a recording's file")
    return Path(path).open("rb")


class _Plainness:
    """Check of unpacked data: raise RecordingError if it is compressed again or unknown."""

    def __init__(self, path: str, packing: str) -> None:
        self._path, self._packing = path, packing

    def __call__(self, head: bytes) -> None:
        again = packing_of(head)
        if again is not None and not (again.magic == ZIP_MAGIC and self._packing != "zip"):
            what = f"is {again.name} inside {self._packing}"
            raise RecordingError(self._path, f"{what}, expected a PyTorch snapshot")
        kind_of(self._path, head[:HEAD])


def kind_of(path: str, head: bytes) -> Kind:
    """Return the format of a file that begins with `head`; RecordingError if it is unknown.

    head: the first `HEAD` bytes of the file.
    """
    if not head:
        raise RecordingError(path, "is empty (0 bytes), expected a PyTorch snapshot")
    if head[:1] == b"\x80":
        return Kind.PICKLE
    if head.startswith(ZIP_MAGIC):
        return Kind.ZIP
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _is_json(text) and _LINES.match(text) is None:
        return Kind.JSON
    if _is_json(text) and _ROW.match(text) is not None:
        return Kind.LINES
    if text[:1] == b"<":
        return Kind.PAGE
    if _is_table(text):
        return Kind.CSV
    raise RecordingError(path, _refusal(head, text))


def is_recording(head: bytes) -> bool:
    """Return True if a file that begins with `head` is a recording rather than a log."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] == b"\x80" or packing_of(head) is not None:
        return True
    if text[:1] == b"<":  # a page without a snapshot, such as a saved forum thread, is text
        return b'"base64"' in head
    if _is_json(text):
        return bool(_NAMED.search(head) or _NUMBERS.match(text))
    return _is_table(text)


def _is_json(text: bytes) -> bool:
    """Return True if the text begins like JSON, and not like a log line such as "[INFO]"."""
    return text[:1] == b"{" or _LIST.match(text) is not None


def _is_table(text: bytes) -> bool:
    """Return True if the first line is the header of a table of allocations."""
    header = _CSV.match(text)
    return header is not None and any(byte in _SEPARATORS for byte in header[0])


def _refusal(head: bytes, text: bytes) -> str:
    """Return the error message for a file that begins with `head` and is not a recording.

    text: `head` without a byte order mark and without leading whitespace.
    """
    expected = "expected a PyTorch snapshot"
    if head[:2] in (b"(d", b"(l", b"}q", b"]q"):
        return f"is a pickle of protocol 0 or 1 (PyTorch writes 2 or later), {expected}"
    if all(byte >= 32 or byte in b"\t\r\n\f\x1b" for byte in head):
        what = name_of_text(text)
        if what is not None:
            return f"is {what}, {expected}; run allocsim explain FILE to read its figures"
        return f"is text that begins with {text[:24].decode('utf-8', 'replace')!a}, {expected}"
    return f"is binary data that begins with bytes {head[:4].hex(' ')}, {expected}"
