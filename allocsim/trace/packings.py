"""Packed files, unpacked piece by piece and never past a limit that the error states.

Rule: what is unpacked goes to a temporary file, never to memory, and the tables that a format lets
a file ask for are bounded too, so that no small file takes much.  No name in an archive is a path
here: one member is read, and nothing is ever written under its name.
"""

from __future__ import annotations

import gzip
import lzma
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from allocsim.errors import RecordingError
from allocsim.units import MIB

__all__ = ["ZIP_MAGIC", "Packing", "is_archive_of_one", "packing_of", "unpacked"]

ZIP_MAGIC = b"PK\x03\x04"
_CHUNK = 1 << 20
_ZSTD_CHUNK = 1 << 12
"""Four bytes of zstd can stand for 128 KiB, and all that a call is given is unpacked by it."""
# Snapshots shrink to a 14th of their size by gzip and a 25th by xz or zstd; profiler traces of one
# layer a thousand times over to a 44th and a 73rd.  zlib's own limit is 1,032.
_MAX_RATIO = 128
_MIN_UNPACKED = 64 * MIB
_MAX_TABLES = 256 * MIB
"""What xz may take for its dictionary, and zstd for its window: xz -9 asks for 65 MiB."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True, slots=True)
class Packing:
    """A way to pack a file.

    magic: its first bytes.  pieces: of what is unpacked, the file's path given for its errors.
    """

    name: str
    magic: bytes
    pieces: Callable[[str, BinaryIO], Iterator[bytes]]


def _gzip_pieces(_: str, packed: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=packed) as stream:
        while piece := stream.read(_CHUNK):
            yield piece


def _xz_pieces(_: str, packed: BinaryIO) -> Iterator[bytes]:
    stream = _xz_stream()
    data = packed.read(_CHUNK)
    while data or not stream.needs_input:
        if piece := stream.decompress(data, _CHUNK):
            yield piece
        if stream.eof:  # another stream may follow, after padding
            data = stream.unused_data.lstrip(b"\0") or packed.read(_CHUNK).lstrip(b"\0")
            if not data:
                return
            stream = _xz_stream()
        else:
            data = packed.read(_CHUNK) if stream.needs_input else b""
    raise EOFError("it ends before its end-of-stream marker")


def _xz_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_TABLES)


def _zstd_pieces(path: str, packed: BinaryIO) -> Iterator[bytes]:
    try:
        import zstandard  # noqa: PLC0415
    except ImportError:
        raise RecordingError(
            path,
            "is packed by zstd, which this Python cannot unpack; pip install zstandard, or unpack "
            "it with `zstd -d`",
        ) from None
    unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_TABLES)
    stream = unpacker.decompressobj()
    data = packed.read(_ZSTD_CHUNK)
    try:
        while data:
            if piece := stream.decompress(data):
                yield piece
            data = stream.unused_data or packed.read(_ZSTD_CHUNK)
            if stream.eof and data:  # another frame follows
                stream = unpacker.decompressobj()
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from None
    if not stream.eof:
        raise EOFError("it ends in the middle of a frame")


def _zip_pieces(path: str, packed: BinaryIO) -> Iterator[bytes]:
    with zipfile.ZipFile(packed) as archive:
        (member,) = _members(archive)
        if member.compress_type not in _METHODS or member.flag_bits & 1:
            raise RecordingError(
                path, "is a zip archive packed by other means than deflate, or encrypted"
            )
        with archive.open(member) as stream:
            while piece := stream.read(_CHUNK):
                yield piece


def _members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    # A member may have no name at all, which is_dir() does not survive.
    return [info for info in archive.infolist() if not info.filename.endswith("/")]


PACKINGS = (
    Packing("gzip", b"\x1f\x8b", _gzip_pieces),
    Packing("xz", b"\xfd7zXZ\x00", _xz_pieces),
    Packing("zstd", b"\x28\xb5\x2f\xfd", _zstd_pieces),
    Packing("zip", ZIP_MAGIC, _zip_pieces),
)
_DAMAGES = (
    EOFError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def packing_of(head: bytes) -> Packing | None:
    """What a file that begins with `head` is packed by; None for a plain one."""
    return next((each for each in PACKINGS if head.startswith(each.magic)), None)


def is_archive_of_one(file: BinaryIO) -> bool:
    """Whether a zip archive is one file that was packed, and no file of arrays or tensors."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [info.filename for info in _members(archive)]
    except _DAMAGES:
        return False
    return len(names) == 1 and not names[0].endswith((".npy", "data.pkl"))


@contextmanager
def unpacked(
    path: str,
    packing: Packing,
    packed: BinaryIO,
    check: Callable[[bytes], object],
    enough: int | None = None,
) -> Iterator[BinaryIO]:
    """What `packed` holds, as a temporary file at its first byte.

    check: is shown the first piece, and may refuse before the rest is unpacked.  enough: bytes
    after which nothing more is unpacked, None for all.
    Raises RecordingError for what is damaged, and, of all, for what grows beyond the limit.
    """
    limit = max(_MIN_UNPACKED, _MAX_RATIO * packed.seek(0, 2))
    packed.seek(0)
    total = 0
    with tempfile.TemporaryFile() as plain:
        try:
            for piece in packing.pieces(path, packed):
                if not total:
                    check(piece)
                total += len(piece)
                if enough is None and total > limit:
                    raise RecordingError(
                        path, f"unpacks to more than {limit} bytes, too many for its own size"
                    )
                plain.write(piece)
                if enough is not None and total >= enough:
                    break
        except _DAMAGES as error:
            reason = ascii(str(cast(Any, error))[:100])[1:-1]
            raise RecordingError(path, f"is damaged as a {packing.name} file ({reason})") from None
        if not total:
            check(b"")
        plain.seek(0)
        yield cast(BinaryIO, plain)
