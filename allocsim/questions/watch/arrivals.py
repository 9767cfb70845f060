"""Recordings as they arrive in a folder.

Rule: a file is read once, when it no longer grows, and again only if it has changed since; one that
cannot be read is named once in the same way.  Nothing is written, and no file is kept open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import RecordingError
from allocsim.trace import Action, Recording, load, recordings_in

__all__ = ["Arrival", "Arrivals", "Unreadable"]

_REST = 2.0
"""Seconds without a change after which a file is taken to be whole."""
_Look = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A recording.

    rank: by its own mark, "" for none.  captured: when it was written, as the file says it.
    reserved_bytes, allocated_bytes: of all devices, at its end.
    ooms: out-of-memory errors in its history.  oom_text: the one that ended the program, "" for
    none.
    """

    path: str
    recording: Recording
    rank: str
    captured: str
    entries: int
    reserved_bytes: int
    allocated_bytes: int
    ooms: int
    oom_text: str

    @property
    def has_failed(self) -> bool:
        """Whether something ran out of memory."""
        return bool(self.ooms or self.oom_text)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is no recording, or a damaged one.  reason: a sentence that names the file."""

    path: str
    reason: str


class Arrivals:
    """What is in a folder, look by look.

    folder: it may not be there yet, or any more.  waits: whether a file was growing at the last
    look.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waits = False
        self._last: dict[Path, _Look] = {}
        self._read: dict[Path, _Look] = {}

    def look(self, now: float) -> Iterator[Arrival | Unreadable]:
        """What is new since the last look, by name.  now: seconds as those of files."""
        self.waits = False
        last, self._last = self._last, {}
        for path in self._files():
            try:
                stat = path.stat()
            except OSError:
                continue  # gone meanwhile
            seen = stat.st_size, stat.st_mtime_ns
            self._last[path] = seen
            if self._read.get(path) == seen:
                continue
            rests = now - stat.st_mtime >= _REST or last.get(path) == seen
            if not rests:
                self.waits = True
                continue
            self._read[path] = seen
            yield _arrived(str(path))

    def _files(self) -> list[Path]:
        try:
            return recordings_in(self.folder)
        except OSError:  # it goes away while it is looked through
            return []


def _arrived(path: str) -> Arrival | Unreadable:
    try:
        recording = load(path)
    except RecordingError as error:
        return Unreadable(path, str(error))
    segments = [segment for trace in recording.devices for segment in trace.segments]
    made = recording.provenance
    return Arrival(
        path=path,
        recording=recording,
        rank=made.rank if made is not None else "",
        captured=made.captured if made is not None else "",
        entries=sum(map(len, recording.devices)),
        reserved_bytes=sum(segment.total_size for segment in segments),
        allocated_bytes=sum(segment.allocated_size for segment in segments),
        ooms=sum(trace.count(Action.OOM) for trace in recording.devices),
        oom_text=made.oom_text if made is not None else "",
    )
