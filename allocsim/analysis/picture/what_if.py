"""Replays of a recording under several settings, with their reserved memory.

Device, device memory and release are those of the baseline.  Settings under which PyTorch would
fail an assertion are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from allocsim.metrics import Extremes, extremes_of
from allocsim.recommend import proposals
from allocsim.replaying import Trial, Trials, trial_of_run
from allocsim.simulation import Run, Setting, Timeline

__all__ = ["WhatIf", "what_if"]

STRETCHES = 160
"""Number of points in each curve."""


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """Replay under one setting.

    reserved: lowest and highest reserved bytes in consecutive groups of entries.
    """

    trial: Trial
    reserved: Extremes


def what_if(trials: Trials, run: Run, settings: Iterable[Setting] = ()) -> tuple[WhatIf, ...]:
    """Replay one device under several settings, for a chart of reserved memory.

    run: baseline replay of the device, which is the first item of the result.
    settings: settings to replay; if empty, the settings that `tune` would propose.
    Settings under which PyTorch would fail an assertion are left out.
    Raises ConfigError for a setting that the release refuses.
    """
    device_run, release = run.devices[0], trials.prepared.release
    entries = device_run.entries
    first = _reserved(device_run.timeline, entries, device_run.stopped_at)
    found = [WhatIf(trial_of_run(run.conf, device_run), first)]
    trials.note(Setting(run.conf), device_run)
    config = Setting(run.conf).config(release)
    for setting in tuple(settings) or proposals([trials.prepared], config):
        setting.config(release)
        trial, timeline = trials.timeline(setting, device_run.device_memory)
        if timeline is not None:
            stopped_at = trial.entries - 1 if trial.entries < entries else None
            found.append(WhatIf(trial, _reserved(timeline, entries, stopped_at)))
    return tuple(found)


def _reserved(timeline: Timeline, entries: int, stopped_at: int | None) -> Extremes:
    """Return the lowest and highest reserved bytes in groups of entries."""
    steps = np.maximum.accumulate(timeline.entry)
    stop = entries if stopped_at is None else stopped_at + 1
    row = np.searchsorted(steps, np.arange(stop), side="right") - 1
    reserved = timeline.reserved[np.maximum(row, 0)] if len(steps) else np.zeros(stop, np.int64)
    step = max(1, -(-entries // STRETCHES))
    return extremes_of(reserved, step)
