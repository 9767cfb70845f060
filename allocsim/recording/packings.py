"""Unpack compressed files piece by piece to a temporary file, up to a size limit.

Another supported packing is the web page that `python -m torch.cuda._memory_viz trace_plot` writes:
it contains a snapshot as base64 text.  The page is not executed.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import lzma
import mmap
import re
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

ZIP_MAGIC = b"PK\x03\x04"
_CHUNK = 1 << 20
_ZSTD_CHUNK = 1 << 12
"""Number of compressed bytes to unpack at a time; 4 such bytes can become 128 KiB."""
# Measured ratios of unpacked to packed bytes: snapshots 14 (gzip) and 25 (xz, zstd); traces of the
# profiler for a thousand equal layers 44 and 73.  zlib's maximum is 1,032.
_MAX_RATIO = 128
_MIN_UNPACKED = 64 * MIB
_MAX_TABLES = 256 * MIB
"""Largest memory in bytes for the dictionary of xz or window of zstd; `xz -9` needs 65 MiB."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True, slots=True)
class Compression:
    """Compression format.

    magic: first bytes of a file in this format.
    pieces: function of a path (for errors) and an open file, which yields the unpacked data in
        pieces.
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
    # is_dir() raises an exception if a member has an empty name.
    return [info for info in archive.infolist() if not info.filename.endswith("/")]


PACKINGS = (
    Compression("gzip", b"\x1f\x8b", _gzip_pieces),
    Compression("xz", b"\xfd7zXZ\x00", _xz_pieces),
    Compression("zstd", b"\x28\xb5\x2f\xfd", _zstd_pieces),
    Compression("zip", ZIP_MAGIC, _zip_pieces),
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


def packing_of(head: bytes) -> Compression | None:
    return next((each for each in PACKINGS if head.startswith(each.magic)), None)


def is_archive_of_one(file: BinaryIO) -> bool:
    """Return True for a zip archive of one file that is not a NumPy or PyTorch file."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [info.filename for info in _members(archive)]
    except _DAMAGES:
        return False
    return len(names) == 1 and not names[0].endswith((".npy", "data.pkl"))


@contextmanager
def unpacked(
    path: str,
    packing: Compression,
    packed: BinaryIO,
    check: Callable[[bytes], object],
    enough: int | None = None,
) -> Iterator[BinaryIO]:
    """Unpack the open file `packed` to a temporary file, and yield that file, open at its start.

    path: name of the file, for errors.
    packing: format of `packed`.
    check: function of the first unpacked piece; it may raise, and then the rest is not unpacked.
    enough: number of unpacked bytes after which to stop unpacking; None to unpack the whole file.
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


_SNAPSHOT = re.compile(rb'"base64"\s*:\s*"([A-Za-z0-9+/=]*)"')
_PIECE = 1 << 22  # a multiple of 4: base64 has 4 characters for 3 bytes
_KNOWN = (
    (rb"GPU Memory Timeline HTML",
     "is the page of PyTorch's memory timeline, a picture without numbers; export the rows: "
     "export_memory_timeline('timeline.raw.json.gz')"),
    (rb"\$PLOT_DATA|alloc_data\s*=|MemoryViz",
     "is a page of _memory_viz without the snapshot in it; give the snapshot that it was made "
     "of"),
    (rb": allocsim report</title>",
     "is a page that allocsim wrote; give the recording that it is about"),
)  # fmt: skip


@contextmanager
def snapshot_in_page(path: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the pickle in the web page `file`, as a temporary file that is open at its start."""
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
