"""Recorded devices that a search for settings replays, and files for its worker processes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from allocsim.analysis.tune.worker import keep, load_once
from allocsim.editing import edited_recording
from allocsim.errors import ConfigError, RecordingError
from allocsim.metrics import Sizes, period_starts, sizes_of
from allocsim.recording import Recording, load, write_npz
from allocsim.replaying import Prepared, prepare
from allocsim.simulation import Hints

Source = str | os.PathLike[str] | Recording
"""Recording, or path of a recording."""


LONG = 20_000
"""Number of entries from which a second thread saves more time than it takes to start."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Recorded device for which a search finds a setting; all devices get the same setting.

    name: path of the recording, for messages.
    path: file from which worker processes read the recording.
    prepared: the device, ready for replays.
    sizes: request sizes in the recording.
    assumed_memory: memory of the recorded device in bytes as given by the user, or None.
    memory: device memory of the replays, in bytes; None for unlimited or not yet chosen.
    """

    name: str
    path: str
    recording: Recording
    device: int
    prepared: Prepared
    sizes: Sizes
    assumed_memory: int | None = None
    memory: int | None = None

    @property
    def digest(self) -> str:
        """Hash of everything in the recording that affects a replay, without file names."""
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
) -> tuple[Target, ...]:
    """Return every device of every recording, ready for replays as one PyTorch release.

    torch_version: PyTorch release to model; None for the release of the first recording.
    scratch: folder for copies of recordings that worker processes read; None to write no copies.
    device: number of the only device to return; None for all.
    device_memory: memory of the recorded devices in bytes; None if the user did not give it.
    """
    found: list[Target] = []
    for number, source in enumerate(sources):
        recording = source if isinstance(source, Recording) else load(source)
        every = [trace.device for trace in recording.devices]
        devices = every if device is None else [device]
        if not devices:
            raise RecordingError(recording.path, "has no device with entries or segments")
        path = _path(source, recording, scratch, number)
        load_once.cache_clear()  # the file may have changed
        for each in devices:
            prepared = prepare(recording, each, torch_version, hints=hints)[0]
            torch_version = torch_version or prepared.release.version
            prepared = prepared.on(device_memory)
            keep(path, prepared, torch_version, device_memory)
            sizes = _sizes_and_periods(prepared)
            found.append(
                Target(recording.path, path, recording, each, prepared, sizes, device_memory)
            )
    if not found:
        raise ConfigError("there is no recording to tune; expected one or more")
    return tuple(found)


def edited_sources(
    sources: Sequence[Source], edits: Sequence[str], torch_version: str | None, hints: Hints | None
) -> list[Source]:
    return [
        edited_recording(
            each if isinstance(each, Recording) else load(each),
            edits,
            torch_version=torch_version,
            hints=hints,
        )
        for each in sources
    ]


def _sizes_and_periods(prepared: Prepared) -> Sizes:
    # Repeated training steps are found here too, so that worker processes inherit them from the
    # cache of `prepared`.
    if len(prepared.trace) < LONG:
        period_starts(prepared)
        return sizes_of(prepared)
    prepared.free_plan  # noqa: B018  (computed here, since both threads need it)
    # NumPy releases the interpreter lock, so two threads save a quarter of the time.
    with ThreadPoolExecutor(1) as beside:
        rounds = beside.submit(period_starts, prepared)
        sizes = sizes_of(prepared)
        rounds.result()
    return sizes


def _path(source: Source, recording: Recording, scratch: Path | None, number: int) -> str:
    if not isinstance(source, Recording):
        path = os.path.abspath(os.fspath(source))  # noqa: PTH100  (a worker's folder differs)
        if scratch is None or path.endswith(".npz"):
            return path
    elif scratch is None:
        raise ConfigError(
            f"{recording.path}: is a recording in memory, which an executor's workers cannot read; "
            "expected the path of a file"
        )
    return str(scratch / f"{number}.npz")


def write_columns(parts: Sequence[Target], scratch: Path) -> None:
    recordings = {Path(part.path): part.recording for part in parts}
    for path, recording in recordings.items():
        if path.parent == scratch:
            write_npz(recording, path)
