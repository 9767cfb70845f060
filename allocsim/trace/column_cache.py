"""The columns of recordings that take long to read, kept for the next time.

Rule: a kept file is never trusted over its source.  It counts only while the source has the size,
the time and the SHA-256 that it had, and these readers are the ones that read it; whatever is
missing, damaged or different means that the source is read again.  No error in here is anyone's.

Files lie in the user's own folder and not beside the recordings: what lies beside a stranger's
file is a stranger's too, and folders of recordings are searched, watched and read-only.  Of
all together the least recently used go first (`_MOST_BYTES`).
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
from allocsim.trace.form import sha256_of
from allocsim.trace.packings import ZIP_MAGIC
from allocsim.trace.recording import Recording
from allocsim.trace.source import packing_in
from allocsim.trace.store import dump_npz, read_npz
from allocsim.trace.whole_file import whole_file
from allocsim.units import GIB

__all__ = ["with_cache"]

_FOLDER, _OFF = "ALLOCSIM_CACHE", "ALLOCSIM_NO_CACHE"
_LONG = 250_000
"""Entries from which on reading again costs more than a look at a clock."""
_MOST_BYTES = 2 * GIB
_MAGIC = b"allocsim columns 1\n"
_LONGEST_KEY = 4096
_UNREADABLE = (OSError, RecordingError, ValueError, RuntimeError)


@dataclass(frozen=True, slots=True)
class _Key:
    """What a kept file is of.  readers: SHA-256 of the code that read it."""

    source: str
    size: int
    mtime_ns: int
    sha256: str
    readers: str


def with_cache(path: str, read: Callable[[str], Recording]) -> Recording:
    """What `read` makes of the file at `path`, from its kept columns where they hold.

    Environment: ALLOCSIM_NO_CACHE, where it is set, keeps and reads none; ALLOCSIM_CACHE is the
    folder (default: ~/.cache/allocsim).
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
            _keep(recording, place, before)
    return recording


def _place(path: str) -> Path | None:
    """Where the columns of that file are kept, whether they are there or not; None: nowhere."""
    if os.environ.get(_OFF):
        return None
    try:
        root = os.environ.get(_FOLDER)
        folder = Path(root) if root else Path.home() / ".cache" / "allocsim"
        name = hashlib.sha256(os.fsencode(Path(path).resolve())).hexdigest()
    except _UNREADABLE:  # no home, or a path that no system has
        return None
    return folder / "columns" / f"{name[:40]}.columns"


def _kept(path: str, place: Path) -> Recording | None:
    """The recording that is kept of the file at `path`, if it is of what lies there now."""
    with suppress(*_UNREADABLE), place.open("rb") as file:
        key = _key_in(file)
        now = _stated(path)
        if now is None or (now.size, now.mtime_ns) != (key.size, key.mtime_ns):
            return None
        if key.readers != _readers():
            return None
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (slow; hardly needed)

        # Either takes as long as the other, and neither holds the interpreter's lock.
        with ThreadPoolExecutor(1) as beside:
            digest = beside.submit(sha256_of, now.source)
            recording = read_npz(path, file)
            if digest.result() != key.sha256:
                return None
        with suppress(OSError):
            os.utime(place)  # for the order in which files go
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
    """Whether it is worth the space; a file of columns loads as fast as it is."""
    if sum(map(len, recording.devices)) < _LONG:
        return False
    with Path(source).open("rb") as file:
        is_packed = packing_in(file) is not None
        file.seek(0)
        return is_packed or file.read(len(ZIP_MAGIC)) != ZIP_MAGIC


def _keep(recording: Recording, place: Path, before: _Key) -> None:
    """Keep the columns, if the source is still what it was before it was read."""
    digest = sha256_of(before.source)
    if _stated(before.source) != before:
        return
    key = _Key(before.source, before.size, before.mtime_ns, digest, _readers())
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole_file(place) as file:
        file.write(_MAGIC + json.dumps(asdict(key)).encode() + b"\n")
        dump_npz(recording, file)
    _tidy(place.parent)


def _stated(path: str) -> _Key | None:
    """What the system says of the source, nothing read; None for what is no regular file."""
    with suppress(OSError, ValueError):
        found = os.stat(path)  # noqa: PTH116  (a path may be one that pathlib cannot hold)
        if stat.S_ISREG(found.st_mode):
            return _Key(str(Path(path).resolve()), found.st_size, found.st_mtime_ns, "", "")
    return None


@cache
def _readers() -> str:
    """Of the code of this package: what another version reads may be another recording."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _tidy(folder: Path) -> None:
    """Let the files go that were not used for longest, until the rest is small enough."""
    known = [(file.stat(), file) for file in folder.iterdir()]
    known.sort(key=lambda each: each[0].st_mtime_ns)
    total = sum(found.st_size for found, _ in known)
    for found, file in known[:-1]:
        if total <= _MOST_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= found.st_size
