"""Data for charts and HTML pages, from replays of one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from allocsim._repr import Shown
from allocsim.analysis.picture.address_map import AddressMap, address_map, axis_of, owners_of
from allocsim.analysis.picture.states import (
    CLASS_NAMES,
    STILL_KINDS,
    Instant,
    Lives,
    MemoryCurve,
    Still,
    block_sizes,
    class_of,
    instant_of,
    lives_of,
    memory_curve,
    still_of,
)
from allocsim.core import find_release, parse_conf
from allocsim.errors import RecordingError
from allocsim.export import HistoryWatch
from allocsim.metrics import Extremes, extremes_of
from allocsim.recommend import proposals
from allocsim.recording import Recording, Trace
from allocsim.replaying import (
    Prepared,
    Trial,
    Trials,
    bytes_of,
    prepare,
    replay_prepared,
    trial_of_run,
)
from allocsim.simulation import DeviceRun, Observer, Progress, Run, Setting, Timeline

__all__ = [
    "AddressMap", "CLASS_NAMES", "Instant", "Picture", "STILL_KINDS", "Still", "WhatIf",
    "address_map", "axis_of", "block_sizes", "class_of", "others_of", "owners_of",
    "picture_of", "picture_prepared", "shown_device", "still_of", "what_if",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Picture(Shown):
    """Replay of one device, with the data for charts and HTML pages.

    run: the replay.
    trace: recorded history entries of the device.
    lives: lifetimes of all blocks and segments.
    curve: memory after every entry.
    others: device numbers of the recording's other devices.
    """

    run: Run
    trace: Trace
    lives: Lives
    curve: MemoryCurve
    others: tuple[int, ...] = ()

    @property
    def device_run(self) -> DeviceRun:
        return self.run.devices[0]

    @property
    def is_expandable(self) -> bool:
        """True if the replayed settings use expandable segments."""
        return parse_conf(self.run.conf, find_release(self.run.torch_version)).expandable_segments

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to print first, such as a note that the settings are not the recorded ones."""
        return self.run.warnings

    def headline(self) -> str:
        drawn = f"{len(self.lives.blocks):,} blocks, {self.lives.n_entries:,} entries"
        return f"{self.run.path.rsplit('/', 1)[-1]}: {drawn}; {self.device_run.headline()}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield "blocks", f"{len(self.lives.blocks):,}"
        yield "entries", f"{self.lives.n_entries:,}"
        yield from self.device_run.figures_shown()

    def at(self, moment: str | int | None = None) -> Instant:
        """Return the segments and blocks after an entry.

        moment: entry number; "peak" for peak allocated memory; "oom" for the last out-of-memory
            error; "end"; None for peak reserved memory.
        Raises RecordingError for an entry that was not replayed, or if there was no error.
        """
        entry = self._entry_of(moment)
        if not 0 <= entry < self.lives.n_entries:
            what = f"there is no such entry in the replay; expected 0 to {self.lives.n_entries - 1}"
            raise RecordingError(self.run.path, what, entry=entry)
        return instant_of(self.lives, entry, is_expandable=self.is_expandable)

    def _entry_of(self, moment: str | int | None) -> int:
        if moment is None:
            return max(self.device_run.peak.entry, 0)
        if moment == "peak":
            return int(np.argmax(self.curve.allocated))
        if moment == "end":
            return self.lives.n_entries - 1
        if moment != "oom":
            return int(moment)
        if not self.device_run.ooms:
            raise RecordingError(self.run.path, "the replay has no out-of-memory error")
        return self.device_run.ooms[-1].entry


def picture_prepared(
    prepared: Prepared,
    setting: Setting | None = None,
    *,
    device_memory: int | None = None,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
    others: Sequence[int] = (),
) -> Picture:
    """Replay a device of a recording and collect the data for charts and HTML pages.

    setting, device_memory: None for the recorded values.
    observers: objects that are notified of events of the replay.
    others: device numbers of the recording's other devices, which the charts mention.
    Raises RecordingError for a device without entries.
    """
    trace = prepared.trace
    if not len(trace):
        raise RecordingError(prepared.path, f"device {trace.device} has no entries to draw")
    watch = HistoryWatch()
    every = (watch, *observers)
    run = replay_prepared(
        (prepared,), setting, device_memory=device_memory, observers=every, progress=progress
    )
    device_run = run.devices[0]
    lives = lives_of(watch.of(trace, device_run), trace, device_run.stopped_at)
    return Picture(run, trace, lives, memory_curve(lives), tuple(others))


def picture_of(
    recording: Recording,
    conf: str | None = None,
    *,
    device_memory: int | str | None = None,
    torch_version: str | None = None,
    device: int | None = None,
    progress: Progress | None = None,
) -> Picture:
    """Replay one device of a recording, and return the data for charts and HTML pages.

    conf: PYTORCH_CUDA_ALLOC_CONF; None for the recorded value.
    device_memory: bytes or "24GiB"; None for the recorded or inferred size.
    torch_version: PyTorch release to model; None to choose it from the recording.
    device: device number; None for the first device with entries.
    progress: callback for the progress of the replay.
    """
    prepared = prepare(recording, shown_device(recording, device), torch_version)[0]
    return picture_prepared(
        prepared,
        None if conf is None else Setting(conf),
        device_memory=bytes_of(device_memory),
        progress=progress,
        others=others_of(recording, prepared),
    )


def others_of(recording: Recording, prepared: Prepared) -> tuple[int, ...]:
    shown = prepared.trace.device
    return tuple(trace.device for trace in recording.devices if trace.device != shown)


def shown_device(recording: Recording, device: int | None) -> int | None:
    """Return the number of the device to show; None if no device has entries or segments.

    device: number that the user chose; None for the first device with entries, or else the first
        with segments.
    """
    if device is not None:
        return device
    busy = [trace.device for trace in recording.devices if len(trace)]
    held = [trace.device for trace in recording.devices if trace.segments]
    return next(iter(busy + held), None)


STRETCHES = 160
"""Largest number of points in the curve of a replay under other settings."""


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """Replay under one setting, for a chart.

    trial: results of the replay.
    reserved: curve; each point has the lowest and highest reserved bytes in a range of entries.
    """

    trial: Trial
    reserved: Extremes


def what_if(trials: Trials, run: Run, settings: Iterable[Setting] = ()) -> tuple[WhatIf, ...]:
    """Replay one device under several settings, for a chart that compares them.

    trials: replays of the device; each result is kept.
    run: finished replay, which becomes the first result.
    settings: settings to replay; if empty, the candidates for a recommendation (`proposals`).
    """
    device_run, release = run.devices[0], trials.prepared.release
    entries = device_run.entries
    first = _reserved(device_run.timeline, entries, device_run.stopped_at)
    found = [WhatIf(trial_of_run(run.conf, device_run), first)]
    trials.add(Setting(run.conf), device_run)
    config = Setting(run.conf).config(release)
    for setting in tuple(settings) or proposals([trials.prepared], config):
        setting.config(release)
        trial, timeline = trials.timeline(setting, device_run.device_memory)
        if timeline is not None:
            stopped_at = trial.entries - 1 if trial.entries < entries else None
            found.append(WhatIf(trial, _reserved(timeline, entries, stopped_at)))
    return tuple(found)


def _reserved(timeline: Timeline, entries: int, stopped_at: int | None) -> Extremes:
    steps = np.maximum.accumulate(timeline.entry)
    stop = entries if stopped_at is None else stopped_at + 1
    row = np.searchsorted(steps, np.arange(stop), side="right") - 1
    reserved = timeline.reserved[np.maximum(row, 0)] if len(steps) else np.zeros(stop, np.int64)
    step = max(1, -(-entries // STRETCHES))
    return extremes_of(reserved, step)
