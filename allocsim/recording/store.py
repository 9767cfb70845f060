"""Read and write column files (.npz with one array per column), and cache large recordings.

The array named "0.size" is the column `size` of device 0.  All other data is a JSON text with the
keys of PyTorch's snapshots, in the array named "recording".
"""

# A cached file is used only if the code of the readers is unchanged, and the source file still has
# the stored size, modification time and SHA-256. Errors of the cache are never raised. The cache is
# in the user's own folder, because a folder of recordings may be untrusted, watched or read-only.

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import RecordingError
from allocsim.recording.export import segments_plain, whole_file
from allocsim.recording.fields import INT32_MAX, Fields, describe
from allocsim.recording.frames import Frame, FrameTable
from allocsim.recording.packings import ZIP_MAGIC
from allocsim.recording.provenance import KEY, marked, read_annotations, read_provenance
from allocsim.recording.recording import Recording
from allocsim.recording.segments import SegmentReader, WrongSum, read_settings
from allocsim.recording.source import packing_in, sha256_of
from allocsim.recording.trace import Action, Trace
from allocsim.units import GIB

_HEADER, _FLAT, _OFFSETS = "recording", "stacks.flat", "stacks.offsets"
_VERSION = 1
_MAX_ARRAY_HEADER = 1000
_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)
_DTYPES: dict[str, Any] = {
    "action": np.uint8,
    "addr": np.uint64,
    "size": np.int64,
    "stream": np.uint64,
    "time_us": np.int64,
    "frames": np.int32,
    "pool_id": np.int32,
    "compile_context": np.int32,
    "user_metadata": np.int32,
}
_OPTIONAL = ("time_us", "compile_context", "user_metadata")
_Columns = dict[str, NDArray[Any]]


def write_npz(recording: Recording, path: str | os.PathLike[str]) -> None:
    with whole_file(path) as file:
        dump_npz(recording, file)


def dump_npz(recording: Recording, file: BinaryIO) -> None:
    header = json.dumps(_header(recording), separators=(",", ":")).encode()
    columns: _Columns = {
        _HEADER: np.frombuffer(header, dtype=np.uint8),
        _FLAT: recording.frame_table.flat,
        _OFFSETS: recording.frame_table.offsets,
    }
    for trace in recording.devices:
        for name, column in trace.columns().items():
            columns[f"{trace.device}.{name}"] = column
    np.savez(file, allow_pickle=False, **columns)


def _header(recording: Recording) -> dict[str, object]:
    settings = recording.settings
    made = recording.provenance
    return {
        **({} if made is None else {KEY: made.plain(recording.devices)}),
        "version": _VERSION,
        "layout": recording.layout,
        **({"notes": list(recording.notes)} if recording.notes else {}),
        "markers": sorted(recording.markers),
        "n_device_traces": recording.n_device_traces,
        "frames": [[f.filename, f.name, f.line] for f in recording.frame_table.frames],
        "allocator_settings": None if settings is None else settings.plain(),
        "external_annotations": [mark.plain() for mark in recording.annotations],
        "wrong_sums": [asdict(wrong) for wrong in recording.wrong_sums],
        "devices": [
            {"device": trace.device, "pool_ids": trace.pool_ids, "texts": trace.texts}
            for trace in recording.devices
        ],
        "segments": [
            segment
            for trace in recording.devices
            for segment in segments_plain(trace, frames=lambda stack: stack)
        ],
    }


def read_npz(path: str, file: BinaryIO) -> Recording:
    size = file.seek(0, os.SEEK_END)
    try:
        with zipfile.ZipFile(cast(BinaryIO, _Within(file, size))) as archive:
            members = _members(path, archive, size)
            columns = {name: _array(path, archive, info) for name, info in members.items()}
        header = json.loads(columns[_HEADER].tobytes())
    except _DAMAGES as error:
        reason = ascii(str(error)[:100])[1:-1]
        raise RecordingError(path, f"is damaged as a column file ({reason})") from None
    return _recording(path, Fields(path, "the header", header), columns, size)


class _Within:
    # `zipfile` reads as many bytes as a damaged archive declares, and Python allocates a buffer of
    # that length first.

    __slots__ = ("_file", "_size", "seek", "seekable", "tell")

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, count: int = -1) -> bytes:
        left = max(self._size - self._file.tell(), 0)
        return self._file.read(left if count < 0 else min(count, left))


def _members(path: str, archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    infos = {info.filename: info for info in archive.infolist()}
    if f"{_HEADER}.npy" not in infos:
        is_model = any(name.endswith("data.pkl") for name in infos)
        what = "a zip archive as torch.save writes it" if is_model else "a zip archive"
        raise RecordingError(path, f"is {what}, expected a PyTorch memory snapshot")
    for info in infos.values():
        size -= info.file_size
        if info.compress_type != zipfile.ZIP_STORED or size < 0:
            name = ascii(info.filename[:60])
            raise RecordingError(path, f"has the member {name} compressed, expected it stored")
    return {name.removesuffix(".npy"): info for name, info in infos.items()}


def _array(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    data = archive.read(info)
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"array format {version} is not 1.0")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream, _MAX_ARRAY_HEADER)
    start = stream.tell()
    sound = len(shape) == 1 and dtype.kind in "iu" and dtype.isnative
    if not sound or dtype.itemsize * shape[0] != len(data) - start:
        name = ascii(info.filename[:60])
        raise RecordingError(
            path, f"has the column {name} of {dtype!s:.20}, expected one row of integers"
        )
    return np.frombuffer(data, dtype=dtype, offset=start)


def _recording(path: str, header: Fields, columns: _Columns, size: int) -> Recording:
    if header.integer("version", 0, INT32_MAX) != _VERSION:
        header.wrong("version", header.integer("version", 0, INT32_MAX), f"{_VERSION}")
    table = _frame_table(header, columns)
    reader = SegmentReader(path, lambda owner: owner.integer("frames", -1, len(table) - 1), size)
    segments = reader.read(header.items("segments"))
    devices = []
    for value in header.items("devices"):
        fields = Fields(path, "a device of the header", value)
        number = fields.integer("device", 0, INT32_MAX)
        trace = _trace(fields, number, columns, table)
        devices.append(replace(trace, segments=segments.get(number, ())))
    plain = header.value("allocator_settings", "a dictionary")
    settings = None if plain is None else Fields(path, "allocator_settings", plain)
    return Recording(
        path=path,
        layout=header.text("layout"),
        devices=marked(header, size, devices),
        settings=None if settings is None else read_settings(settings),
        frame_table=table,
        annotations=read_annotations(header, size),
        markers=frozenset(_texts(header, "markers")),
        n_device_traces=header.integer("n_device_traces", 0, INT32_MAX),
        provenance=read_provenance(header),
        notes=_texts(header, "notes") if "notes" in header else (),
        wrong_sums=tuple(
            WrongSum.from_plain(Fields(path, "a wrong sum", value))
            for value in (header.items("wrong_sums") if "wrong_sums" in header else [])
        ),
    )


def _frame_table(header: Fields, columns: _Columns) -> FrameTable:
    frames = []
    for value in header.items("frames"):
        match value:
            case [str(filename), str(name), int(line)]:
                frames.append(Frame(filename, name, line))
            case _:
                header.refuse(f"a frame is {describe(value)}, expected file, name and line")
    flat = _column(header, columns, _FLAT, np.int32, (0, len(frames) - 1))
    offsets = _column(header, columns, _OFFSETS, np.int64, (0, len(flat)))
    is_sorted = not np.any(np.diff(offsets) < 0)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(flat) or not is_sorted:
        header.refuse(f"the column {_OFFSETS} does not divide {len(flat)} frames into stacks")
    return FrameTable(tuple(frames), flat, offsets)


def _trace(fields: Fields, device: int, columns: _Columns, table: FrameTable) -> Trace:
    ids = fields.items("pool_ids")
    pools = tuple(Fields(fields.path, "pool_ids", {"id": v}).pool_id("id") for v in ids)
    texts = _texts(fields, "texts")
    limits = {
        "action": (0, len(Action) - 1),
        "size": (0, None),
        "time_us": (0, None),
        "frames": (-1, len(table) - 1),
        "pool_id": (-1, len(pools) - 1),
        "compile_context": (-1, len(texts) - 1),
        "user_metadata": (-1, len(texts) - 1),
    }
    found = {
        name: _column(fields, columns, f"{device}.{name}", dtype, limits.get(name))
        for name, dtype in _DTYPES.items()
        if name not in _OPTIONAL or f"{device}.{name}" in columns
    }
    lengths = {len(column) for column in found.values()}
    if len(lengths) > 1:
        fields.refuse(f"the columns of device {device} differ in length: {sorted(lengths)}")
    return Trace(device, pool_ids=pools, texts=texts, frame_table=table, **cast(Any, found))


def _texts(fields: Fields, name: str) -> tuple[str, ...]:
    values = fields.items(name)
    for value in values:
        if not isinstance(value, str):
            fields.wrong(name, value, "texts only")
    return tuple(cast(list[str], values))


def _column(
    fields: Fields, columns: _Columns, name: str, dtype: Any, limits: tuple[int, int | None] | None
) -> NDArray[Any]:
    column = columns.get(name)
    if column is None or column.dtype != dtype:
        found = "missing" if column is None else f"of {column.dtype}"
        fields.refuse(f"the column {name} is {found}, expected {np.dtype(dtype)}")
    if limits is not None and len(column):
        low, high = limits
        least, most = int(column.min()), int(column.max())
        if least < low or (high is not None and most > high):
            fields.refuse(
                f"the column {name} runs from {least} to {most}, expected {low} to {high}"
            )
    return column


_FOLDER, _OFF = "ALLOCSIM_CACHE", "ALLOCSIM_NO_CACHE"
_LONG = 250_000
"""Number of entries from which a recording is cached; smaller recordings load quickly."""
_MOST_BYTES = 2 * GIB
_MAGIC = b"allocsim columns 1\n"
_LONGEST_KEY = 4096
_UNREADABLE = (OSError, RecordingError, ValueError, RuntimeError)


@dataclass(frozen=True, slots=True)
class _Key:
    """Identity of a source file and of the code that reads it; a cached file contains it.

    The cached file is valid only while both are unchanged.

    source, size, mtime_ns, sha256: path, bytes, modification time and digest of the source file.
    readers: SHA-256 of the code that reads recordings.
    """

    source: str
    size: int
    mtime_ns: int
    sha256: str
    readers: str


def with_cache(path: str, read: Callable[[str], Recording]) -> Recording:
    """Return the recording at `path` from the cache; if it is not there, call `read(path)`.

    Environment variables: ALLOCSIM_NO_CACHE disables the cache; ALLOCSIM_CACHE is its folder
    (default: ~/.cache/allocsim).
    """
    place = _place(path)
    if place is None:
        return read(path)
    recording = _kept(path, place)
    if recording is not None:
        return recording
    before = _stated(path)
    recording = read(path)
    with suppress(*_UNREADABLE):
        if before is not None and _is_slow(before.source, recording):
            _write_if_unchanged(recording, place, before)
    return recording


def _place(path: str) -> Path | None:
    if os.environ.get(_OFF):
        return None
    try:
        root = os.environ.get(_FOLDER)
        folder = Path(root) if root else Path.home() / ".cache" / "allocsim"
        name = hashlib.sha256(os.fsencode(Path(path).resolve())).hexdigest()
    except _UNREADABLE:  # no home directory, or an impossible path
        return None
    return folder / "columns" / f"{name[:40]}.columns"


def _kept(path: str, place: Path) -> Recording | None:
    with suppress(*_UNREADABLE), place.open("rb") as file:
        key = _key_in(file)
        now = _stated(path)
        if now is None or (now.size, now.mtime_ns) != (key.size, key.mtime_ns):
            return None
        if key.readers != _readers():
            return None
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (slow; hardly needed)

        # Computing the digest and reading the columns take equally long, and both release the GIL.
        with ThreadPoolExecutor(1) as beside:
            digest = beside.submit(sha256_of, now.source)
            recording = read_npz(path, file)
            if digest.result() != key.sha256:
                return None
        with suppress(OSError):
            os.utime(place)  # marks the file as recently used
        return recording
    return None


def _key_in(file: BinaryIO) -> _Key:
    if file.readline(len(_MAGIC)) != _MAGIC:
        raise ValueError("not a file of columns")
    try:
        return _Key(**json.loads(file.readline(_LONGEST_KEY)))
    except TypeError:
        raise ValueError("not a key") from None


def _is_slow(source: str, recording: Recording) -> bool:
    if sum(map(len, recording.devices)) < _LONG:
        return False
    with Path(source).open("rb") as file:
        is_packed = packing_in(file) is not None
        file.seek(0)
        return is_packed or file.read(len(ZIP_MAGIC)) != ZIP_MAGIC


def _write_if_unchanged(recording: Recording, place: Path, before: _Key) -> None:
    digest = sha256_of(before.source)
    if _stated(before.source) != before:
        return
    key = _Key(before.source, before.size, before.mtime_ns, digest, _readers())
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole_file(place) as file:
        file.write(_MAGIC + json.dumps(asdict(key)).encode() + b"\n")
        dump_npz(recording, file)
    _delete_oldest(place.parent)


def _stated(path: str) -> _Key | None:
    with suppress(OSError, ValueError):
        found = os.stat(path)  # noqa: PTH116  (pathlib refuses some paths)
        if stat.S_ISREG(found.st_mode):
            return _Key(str(Path(path).resolve()), found.st_size, found.st_mtime_ns, "", "")
    return None


@cache
def _readers() -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _delete_oldest(folder: Path) -> None:
    known = [(file.stat(), file) for file in folder.iterdir()]
    known.sort(key=lambda each: each[0].st_mtime_ns)
    total = sum(found.st_size for found, _ in known)
    for found, file in known[:-1]:  # the newest file is kept, however large
        if total <= _MOST_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= found.st_size
