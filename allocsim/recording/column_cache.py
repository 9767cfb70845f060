"""Cache of the columns of large recordings, so that a second load takes less time.

A cached file is used only if the source still has the size, modification time and SHA-256 that the
cached file stores, and the reader code is unchanged.  In every other case the source is read again.
An error of the cache is never raised.

The cache is in the user's own folder, because a folder of recordings may be untrusted, watched or
read-only.  The least recently used files are deleted first (`_MOST_BYTES`).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from allocsim.errors import RecordingError
from allocsim.recording.export import whole_file
from allocsim.recording.packings import ZIP_MAGIC
from allocsim.recording.recording import Recording
from allocsim.recording.source import packing_in, sha256_of
from allocsim.recording.store import dump_npz, read_npz
from allocsim.units import GIB

_FOLDER, _OFF = "ALLOCSIM_CACHE", "ALLOCSIM_NO_CACHE"
_LONG = 250_000
"""Number of entries from which a recording is cached; smaller recordings load quickly."""
_MOST_BYTES = 2 * GIB
_MAGIC = b"allocsim columns 1\n"
_LONGEST_KEY = 4096
_UNREADABLE = (OSError, RecordingError, ValueError, RuntimeError)


@dataclass(frozen=True, slots=True)
class _Key:
    """Source file of a cached file, which is valid while all these fields are unchanged.

    readers: SHA-256 of the code that reads recordings.
    """

    source: str
    size: int
    mtime_ns: int
    sha256: str
    readers: str


def with_cache(path: str, read: Callable[[str], Recording]) -> Recording:
    """Return the recording at `path`, from the cache if valid, else by calling `read(path)`.

    Environment: ALLOCSIM_NO_CACHE disables the cache; ALLOCSIM_CACHE is its folder (default:
    ~/.cache/allocsim).
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

        # The digest and the columns take equally long to read, and both release the GIL.
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
    for found, file in known[:-1]:
        if total <= _MOST_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= found.st_size
