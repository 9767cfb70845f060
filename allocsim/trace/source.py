"""A file of unknown origin, opened as plain bytes whose kind is told from the bytes alone.

Memory stays bounded: nothing is read whole here, and a gzip file is unpacked to a temporary
file, never to memory, up to `_MAX_RATIO` times its size.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from allocsim.errors import RecordingError
from allocsim.units import MIB

__all__ = ["PICKLE", "JSON", "ZIP", "open_source", "kind_of"]

PICKLE, JSON, ZIP = "pickle", "json", "zip"

_GZIP_MAGIC = b"\x1f\x8b"
_HEAD = 512
_CHUNK = 1 << 20
# Real snapshots shrink 11 to 16 times; zlib's own limit is 1,032.
_MAX_RATIO = 64
_MIN_UNPACKED = 64 * MIB


@contextmanager
def open_source(path: str) -> Iterator[BinaryIO]:
    """The file at `path`, unpacked if it is gzip, positioned at its first byte.

    Raises RecordingError if it is missing, no regular file, unreadable, or damaged or
    implausible as gzip.
    """
    with ExitStack() as files:
        try:
            file = files.enter_context(_regular(path))
            head = file.read(len(_GZIP_MAGIC))
            file.seek(0)
            if head == _GZIP_MAGIC:
                plain = cast(BinaryIO, files.enter_context(tempfile.TemporaryFile()))
                _unpack(path, file, plain)
                file = plain
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


def _unpack(path: str, packed: BinaryIO, plain: BinaryIO) -> None:
    limit = max(_MIN_UNPACKED, _MAX_RATIO * Path(path).stat().st_size)
    total = 0
    try:
        with gzip.GzipFile(fileobj=packed) as stream:
            while chunk := stream.read(_CHUNK):
                if not total:
                    kind_of(path, chunk[:_HEAD])
                total += len(chunk)
                if total > limit:
                    raise RecordingError(
                        path, f"unpacks to more than {limit} bytes, too many for its own size"
                    )
                plain.write(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RecordingError(path, f"is damaged as a gzip file ({error})") from None
    plain.seek(0)


def kind_of(path: str, head: bytes) -> str:
    """PICKLE, JSON or ZIP, told from the first bytes; RecordingError names anything else."""
    if not head:
        raise RecordingError(path, "is empty (0 bytes), expected a PyTorch snapshot")
    if head[:1] == b"\x80":
        return PICKLE
    if head.startswith(b"PK\x03\x04"):
        return ZIP
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return JSON
    raise RecordingError(path, f"is {_foreign(head, text)}, expected a PyTorch snapshot")


def _foreign(head: bytes, text: bytes) -> str:
    if text[:1] == b"<":
        return "a web page or XML file"
    if head.startswith(_GZIP_MAGIC):
        return "gzip inside gzip"
    if head[:2] in (b"(d", b"(l", b"}q", b"]q"):
        return "a pickle of protocol 0 or 1 (PyTorch writes 2 or later)"
    if all(byte >= 32 or byte in b"\t\r\n\f" for byte in head):
        return f"text that begins with {text[:24].decode('utf-8', 'replace')!a}"
    return f"binary data that begins with bytes {head[:4].hex(' ')}"
