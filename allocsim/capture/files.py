"""Write the files of a capture within a limit of disk space.

Rule: a file is complete or absent.  All files of one capture together stay within its limit, and
one file takes at most half of the free disk space.  To make room for a new file, the oldest files
are removed.  If the new file is still too large, its oldest entries are left out.  If the folder is
not writable, the system's folder for temporary files is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

PROTOCOL = 4
"""Newest pickle protocol that PyTorch's viewer reads."""
TEXT_ROOM = 4096
"""Bytes reserved in a file for the text of an error, which is known only after the write."""
SHARES = (1, 4, 16, 64, 0)
"""Divisors of the number of entries, tried until the file fits; 0 leaves out all entries."""

_TOO_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "LOCAL_RANK")


class _NoRoomError(Exception):
    pass


@dataclass
class Written:
    """One written file.

    size: bytes.
    n_entries: number of entries in the file.
    n_dropped: number of older entries that were left out because the file was too large.
    text_at: offset of the bytes reserved for the text of an error; -1 without an error.
    """

    path: Path
    size: int
    n_entries: int
    n_dropped: int
    text_at: int

    def put_text(self, text: str) -> None:
        if self.text_at < 0:
            return
        data = text.encode("utf-8", "replace")[:TEXT_ROOM]
        data = data.decode("utf-8", "ignore").encode()
        with contextlib.suppress(OSError), self.path.open("r+b") as file:
            file.seek(self.text_at)
            file.write(data.ljust(TEXT_ROOM))


class Files:
    """Files that one capture has written in one process.

    path: file name, to which rank and occasion are added, or a folder.
    most: largest total size of the files, in bytes.
    """

    def __init__(self, path: str | os.PathLike[str], most: int) -> None:
        given = Path(path)
        is_folder = given.is_dir() or str(path).endswith(("/", os.sep))
        given = given / "capture.pickle" if is_folder else given
        self.folder = Path.cwd() / given.parent
        self.suffix = given.suffix or ".pickle"
        self.stem = given.name[: -len(given.suffix)] if given.suffix else given.name
        self.most = most
        self.written: list[Written] = []
        self.n_removed = 0

    def name(self, *parts: str) -> str:
        return "-".join((self.stem, *filter(None, parts))) + self.suffix

    def save(self, name: str, snapshot: Any, describe: Callable[[Any, int], Any]) -> Written:
        """Write `snapshot` with as many of its newest entries as fit; return data about the file.

        name: file name.
        describe: function that returns the object to pickle. Its arguments are the snapshot with
            the kept entries, and the number of entries left out.
        Raises OSError if not even the segments can be written.
        """
        failure: OSError | None = None
        for folder in (self.folder, Path(tempfile.gettempdir())):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                return self._save_in(folder, name, snapshot, describe)
            except OSError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _save_in(
        self, folder: Path, name: str, snapshot: Any, describe: Callable[[Any, int], Any]
    ) -> Written:
        place, part = folder / name, folder / (name + ".part")
        refusal = OSError(errno.ENOSPC, "no room for a snapshot", str(place))
        for share in SHARES:
            kept = _newest(snapshot, share)
            n_entries = _n_entries(kept)
            n_dropped = _n_entries(snapshot) - n_entries
            if share > 1 and not n_entries:
                continue
            try:
                room = self._room(folder, place, share == 0)
                size = self._write(part, describe(kept, n_dropped), room)
            except _NoRoomError:
                continue
            except OSError as error:
                if error.errno not in _TOO_FULL:
                    raise
                refusal = error
                continue
            finally:
                with contextlib.suppress(OSError):
                    part.unlink()
            written = Written(place, size, n_entries, n_dropped, _room_for_text(place))
            self.written = [old for old in self.written if old.path != place] + [written]
            return written
        raise refusal

    def _room(self, folder: Path, place: Path, is_least: bool) -> int:
        # `is_least`: the file has no entries, so that it is small.
        others = [old for old in self.written if old.path != place]
        expected = max((old.size for old in self.written), default=0)
        while others and self.most - sum(old.size for old in others) < expected:
            with contextlib.suppress(OSError):
                others[0].path.unlink()
            self.n_removed += 1
            self.written.remove(others.pop(0))
        free = shutil.disk_usage(folder).free
        room = self.most - sum(old.size for old in others)
        # A file without entries is small and may use all free space.
        return min(room, free if is_least else free // 2)

    def _write(self, part: Path, snapshot: Any, most: int) -> int:
        with part.open("wb") as file:
            bounded = _Bounded(file, most)
            pickle.dump(snapshot, bounded, protocol=PROTOCOL)
        part.replace(part.with_name(part.name[: -len(".part")]))
        return bounded.size


class _Bounded:
    def __init__(self, file: BinaryIO, most: int) -> None:
        self.file = file
        self.most = most
        self.size = 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        if self.size > self.most:
            raise _NoRoomError
        return self.file.write(data)


def _newest(snapshot: Any, share: int) -> Any:
    """Return `snapshot` with the newest of its entries, one in `share`; with none if it is 0."""

    def newest(trace: list[Any]) -> list[Any]:
        return trace[len(trace) - len(trace) // share :] if share else []

    host = {"host_traces": newest(snapshot["host_traces"])} if "host_traces" in snapshot else {}
    return {**snapshot, "device_traces": [*map(newest, snapshot["device_traces"])], **host}


def _n_entries(snapshot: Any) -> int:
    """Return the number of entries of all devices and of pinned host memory."""
    return sum(map(len, (*snapshot["device_traces"], snapshot.get("host_traces", ()))))


def _room_for_text(path: Path) -> int:
    with path.open("rb") as file:
        # The reserved text is the last value of the pickle, near the end of the file.
        start = max(file.seek(0, os.SEEK_END) - 4 * TEXT_ROOM, 0)
        file.seek(start)
        at = file.read().rfind(b" " * TEXT_ROOM)
    return start + at if at >= 0 else -1


def rank_of(torch: Any) -> str:
    """Return the rank of this process in its distributed job; "" without one."""
    with contextlib.suppress(Exception):
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return str(int(torch.distributed.get_rank()))
    ranks = (os.environ.get(name, "") for name in _RANKS)
    return next((rank for rank in ranks if rank.isdigit()), "")
