"""Detect new recordings in a folder.

A file is read once it no longer grows, and is read again only if it changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import RecordingError
from allocsim.recording import Action, Provenance, Recording, load, recordings_in

_REST = 2.0  # seconds without a change after which a file counts as complete

_Look = tuple[int, int]  # size and modification time of a file


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """New or changed recording in the folder.

    rank: number of the process in its distributed job, as text; "" if not recorded.
    captured: reason why `allocsim.capture` wrote the file; "" if unknown.
    entries: number of history entries of all devices.
    reserved_bytes, allocated_bytes: sums over all devices at the end of the recording.
    ooms: number of recorded out-of-memory errors.
    oom_text: text of the out-of-memory error that ended the program; "" if there is none.
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
        return bool(self.ooms or self.oom_text)


@dataclass(frozen=True, slots=True)
class Unreadable:
    path: str
    reason: str


class Arrivals:
    """Scanner that finds new recordings in a folder.

    folder: folder to scan; it need not exist yet.
    waits: True if a file was still growing at the last scan.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waits = False
        self._last: dict[Path, _Look] = {}
        self._read: dict[Path, _Look] = {}

    def scan(self, now: float) -> Iterator[Arrival | Unreadable]:
        """Yield recordings that are new or changed since the last scan, sorted by path.

        now: time in seconds since 1970.
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
            # A file from a machine whose clock is ahead never looks old, but it is complete if it
            # has not changed since the last scan.
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
    made = recording.provenance or Provenance()
    return Arrival(
        path=path,
        recording=recording,
        rank=made.rank,
        captured=made.captured,
        entries=sum(map(len, recording.devices)),
        reserved_bytes=sum(segment.total_size for segment in segments),
        allocated_bytes=sum(segment.allocated_size for segment in segments),
        ooms=sum(trace.count(Action.OOM) for trace in recording.devices),
        oom_text=made.oom_text,
    )
