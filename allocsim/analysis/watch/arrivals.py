"""Detect recordings as they arrive in a folder.

A file is read once when it no longer grows, and again only after a change.  A file that cannot be
read is reported in the same way.  Nothing is written, and no file is kept open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import RecordingError
from allocsim.recording import Action, Recording, load, recordings_in

__all__ = ["Arrival", "Arrivals", "Unreadable"]

_REST = 2.0
"""Seconds without a change after which a file counts as complete."""

_Look = tuple[int, int]
"""Size and modification time of a file."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """New recording.

    rank: rank stored in the file; "" if there is none.
    captured: time of writing as stored in the file.
    entries: number of entries of all devices.
    reserved_bytes, allocated_bytes: sums over all devices at the end of the recording.
    ooms: number of out-of-memory errors in the history.
    oom_text: text of the error that ended the program; "" if there is none.
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
        """True if a request ran out of memory."""
        return bool(self.ooms or self.oom_text)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """File that is not a valid recording, and the reason as a sentence that names the file."""

    path: str
    reason: str


class Arrivals:
    """Scanner of a folder.

    folder: folder to scan, which need not exist.
    waits: True if a file was still growing at the last scan.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waits = False
        self._last: dict[Path, _Look] = {}
        self._read: dict[Path, _Look] = {}

    def look(self, now: float) -> Iterator[Arrival | Unreadable]:
        """Yield the new files since the last scan, by name.

        now: current time in seconds on the clock of file modification times.
        """
        self.waits = False
        last, self._last = self._last, {}
        for path in self._files():
            try:
                stat = path.stat()
            except OSError:
                continue  # deleted since it was listed
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
        except OSError:  # the folder was deleted during the scan
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
