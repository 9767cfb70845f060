"""The same recording under other settings, side by side: a replay each, and its reserved memory.

Rule: device, device memory and release stay those of the run compared with; a setting that
PyTorch would not survive is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from allocsim.engine import Run, Setting, Timeline, Trial, Trials, trial_of_run
from allocsim.measures import Extremes, extremes_of, proposals

__all__ = ["WhatIf", "what_if"]

STRETCHES = 160
"""Stretches that each run's curve is cut into."""


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """One run; reserved: its extremes over the recording's entries, in bytes."""

    trial: Trial
    reserved: Extremes


def what_if(trials: Trials, run: Run, settings: Iterable[Setting] = ()) -> tuple[WhatIf, ...]:
    """Replay under each of `settings`, or of the `proposals` if there are none.

    run: the replay of one device that they are compared with, which is the first of the result.
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
    """The extremes of reserved memory over all entries."""
    steps = np.maximum.accumulate(timeline.entry)
    stop = entries if stopped_at is None else stopped_at + 1
    row = np.searchsorted(steps, np.arange(stop), side="right") - 1
    reserved = timeline.reserved[np.maximum(row, 0)] if len(steps) else np.zeros(stop, np.int64)
    step = max(1, -(-entries // STRETCHES))
    return extremes_of(reserved, step)
