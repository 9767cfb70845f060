"""Where a snapshot is written, and how much of the disk it may take.

Rule: a file appears whole or not at all, and writing raises nothing.  All files of one capture
together stay within its limit and each takes at most half of what is free: an older one makes room
for a newer one, and what is still too large loses its oldest entries.  A folder that cannot be
written to is replaced by the system's folder for temporary files.
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

__all__ = ["Files", "Written", "rank_of"]

PROTOCOL = 4
"""The newest that PyTorch's own viewer reads."""
TEXT_ROOM = 4096
"""Bytes left in a file for the text of the error, which is known only after it is written."""
SHARES = (1, 4, 16, 64, 0)
"""What is tried: all entries, the newest of them one in so many, none."""

_TOO_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "LOCAL_RANK")


class _NoRoomError(Exception):
    """A file would grow beyond what it may take."""


@dataclass
class Written:
    """One file.  text_at: where the room for the error's text begins, -1 for none.

    n_dropped: entries that the file has not and the history had, for want of room.
    """

    path: Path
    size: int
    n_entries: int
    n_dropped: int
    text_at: int

    def put_text(self, text: str) -> None:
        """Write the text of the error that the snapshot was made at into the room left for it."""
        if self.text_at < 0:
            return
        data = text.encode("utf-8", "replace")[:TEXT_ROOM]
        data = data.decode("utf-8", "ignore").encode()
        with contextlib.suppress(OSError), self.path.open("r+b") as file:
            file.seek(self.text_at)
            file.write(data.ljust(TEXT_ROOM))


class Files:
    """The files of one capture in one process.

    path: as the user gave it: a file's name, to which rank and occasion are added, or a folder.
    most: bytes of all of them together.
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
        """A file's name with what tells it from the others."""
        return "-".join((self.stem, *filter(None, parts))) + self.suffix

    def save(self, name: str, snapshot: Any, tell: Callable[[list[Any], int], Any]) -> Written:
        """Write as much of `snapshot` as there is room for.

        tell: the snapshot with its newest entries, given those and how many others there were.
        Raises OSError where not even the segments could be written anywhere.
        """
        failure: OSError | None = None
        for folder in (self.folder, Path(tempfile.gettempdir())):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                return self._save_in(folder, name, snapshot, tell)
            except OSError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _save_in(
        self, folder: Path, name: str, snapshot: Any, tell: Callable[[list[Any], int], Any]
    ) -> Written:
        whole = snapshot["device_traces"]
        place, part = folder / name, folder / (name + ".part")
        refusal = OSError(errno.ENOSPC, "no room for a snapshot", str(place))
        for share in SHARES:
            traces = [trace[len(trace) - len(trace) // share :] if share else [] for trace in whole]
            n_entries = sum(map(len, traces))
            n_dropped = sum(map(len, whole)) - n_entries
            if share > 1 and not n_entries:
                continue
            try:
                room = self._room(folder, place, share == 0)
                size = self._write(part, tell(traces, n_dropped), room)
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
        """Bytes that a file may take; older files are removed where a large one would not fit."""
        others = [old for old in self.written if old.path != place]
        expected = max((old.size for old in self.written), default=0)
        while others and self.most - sum(old.size for old in others) < expected:
            with contextlib.suppress(OSError):
                others[0].path.unlink()
            self.n_removed += 1
            self.written.remove(others.pop(0))
        free = shutil.disk_usage(folder).free
        room = self.most - sum(old.size for old in others)
        return min(room, free if is_least else free // 2)

    def _write(self, part: Path, snapshot: Any, most: int) -> int:
        with part.open("wb") as file:
            bounded = _Bounded(file, most)
            pickle.dump(snapshot, bounded, protocol=PROTOCOL)
        part.replace(part.with_name(part.name[: -len(".part")]))
        return bounded.size


class _Bounded:
    """A file that refuses to grow beyond `most` bytes."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self.file = file
        self.most = most
        self.size = 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        if self.size > self.most:
            raise _NoRoomError
        return self.file.write(data)


def _room_for_text(path: Path) -> int:
    with path.open("rb") as file:
        start = max(file.seek(0, os.SEEK_END) - 4 * TEXT_ROOM, 0)
        file.seek(start)
        at = file.read().rfind(b" " * TEXT_ROOM)
    return start + at if at >= 0 else -1


def rank_of(torch: Any) -> str:
    """This process's rank in its job, "" for none."""
    with contextlib.suppress(Exception):
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return str(int(torch.distributed.get_rank()))
    told = (os.environ.get(name, "") for name in _RANKS)
    return next((rank for rank in told if rank.isdigit()), "")
