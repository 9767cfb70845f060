"""One device of one recording among those that share a setting, and the file that jobs name.

Rule: jobs carry paths, so a recording that is only in memory, or is read slowly, is written once
in its column form if a process that carries jobs out may not have it; a recording is known by its
entries, not by its name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from allocsim.engine import Hints, Prepared, prepare
from allocsim.errors import ConfigError, RecordingError
from allocsim.measures import Sizes, rounds_of, sizes_of
from allocsim.questions.tune.worker import forget, keep
from allocsim.trace import Recording, load, write_npz

__all__ = ["Part", "Source", "parts_of", "write_columns"]

Source = str | os.PathLike[str] | Recording
"""A recording, or the file that holds one."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """name: of the file, for people; path: for jobs, of `recording`.

    assumed_memory: bytes that the user says the recorded device had, None where nobody does.
    """

    name: str
    path: str
    recording: Recording
    device: int
    prepared: Prepared
    sizes: Sizes
    assumed_memory: int | None = None

    @property
    def digest(self) -> str:
        """Of the entries and what else a trial depends on."""
        prepared = self.prepared
        trace = prepared.trace
        beside: tuple[object, ...] = (len(trace.segments), prepared.recorded.conf)
        beside += (prepared.context_memory,)
        if prepared.marks or not prepared.hints.empties:
            beside += (prepared.marks, prepared.hints.empties)
        columns = (trace.action, trace.addr, trace.size, trace.stream)
        data = b"".join(column.tobytes() for column in columns) + repr(beside).encode()
        return hashlib.sha256(data).hexdigest()[:32]


def parts_of(
    sources: Sequence[Source],
    torch_version: str | None,
    scratch: Path | None,
    device: int | None = None,
    *,
    device_memory: int | None = None,
    hints: Hints | None = None,
) -> tuple[Part, ...]:
    """Every device (or the one asked for) of every recording, under one release.

    torch_version: None for that of the first recording.  scratch: a folder for column files
    (see `write_columns`), None if jobs are to name the files that were given.
    device_memory: bytes, as the user says.  hints: as in `prepare`.
    Raises ConfigError if there is nothing, RecordingError for a file that cannot be replayed.
    """
    found: list[Part] = []
    for number, source in enumerate(sources):
        recording = source if isinstance(source, Recording) else load(source)
        every = [trace.device for trace in recording.devices]
        devices = every if device is None else [device]
        if not devices:
            raise RecordingError(recording.path, "has no device with entries or segments")
        path = _path(source, recording, scratch, number)
        forget(path)
        for each in devices:
            prepared = prepare(recording, each, torch_version, hints=hints)[0]
            torch_version = torch_version or prepared.release.version
            prepared = prepared.on(device_memory)
            keep(path, prepared, torch_version, device_memory)
            sizes = _looked_through(prepared)
            found.append(
                Part(recording.path, path, recording, each, prepared, sizes, device_memory)
            )
    if not found:
        raise ConfigError("there is no recording to tune; expected one or more")
    return tuple(found)


def _looked_through(prepared: Prepared) -> Sizes:
    """The sizes, when the rounds have been found too: every process would have to look for them.

    Both are columns of NumPy's, which sorts and adds in two threads at once: a quarter of the time.
    """
    prepared.free_plan  # noqa: B018  (both begin with it)
    with ThreadPoolExecutor(1) as beside:
        rounds = beside.submit(rounds_of, prepared)
        sizes = sizes_of(prepared)
        rounds.result()
    return sizes


def _path(source: Source, recording: Recording, scratch: Path | None, number: int) -> str:
    if not isinstance(source, Recording):
        path = os.path.abspath(os.fspath(source))  # noqa: PTH100  (a worker's folder differs)
        if scratch is None or path.endswith(".npz"):
            return path
    elif scratch is None:
        raise ConfigError(f"{recording.path}: workers elsewhere need the file, not the recording")
    return str(scratch / f"{number}.npz")


def write_columns(parts: Sequence[Part], scratch: Path) -> None:
    """Write the recordings that jobs look for in `scratch`."""
    recordings = {Path(part.path): part.recording for part in parts}
    for path, recording in recordings.items():
        if path.parent == scratch:
            write_npz(recording, path)
