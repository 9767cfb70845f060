"""The same recording under other settings, side by side: a replay each, and its reserved memory.

Rule: device, device memory and release stay those of the run compared with; a setting that
PyTorch would not survive is left out, as in `cure.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from allocsim.analysis.extremes import Extremes, extremes_of
from allocsim.core import find_release
from allocsim.engine import DeviceRun, Run, replay
from allocsim.errors import UndefinedBehaviorError, UpstreamAssertionError
from allocsim.trace import Recording
from allocsim.tuning.cure import Trial, Watch, settings_to_try, trial_of

__all__ = ["WhatIf", "what_if", "what_if_of"]

STRETCHES = 160
"""Stretches that each run's curve is cut into."""


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """One run.  reserved: its extremes over the recording's entries, in bytes."""

    trial: Trial
    reserved: Extremes


def what_if(
    recording: Recording, run: Run, confs: Iterable[str] = (), watch: Watch | None = None
) -> tuple[WhatIf, ...]:
    """Replay under each of `confs`, or of `settings_to_try` if there are none.

    run: the replay of one device that they are compared with; it stands first.
    Raises ConfigError for a setting that the release refuses.
    """
    device_run = run.devices[0]
    found = [what_if_of(run.conf, device_run)]
    for conf in tuple(confs) or settings_to_try(run.conf, find_release(run.torch_version)):
        try:
            other = replay(
                recording,
                conf,
                device_memory=device_run.device_memory,
                torch_version=run.torch_version,
                device=device_run.device,
                progress=watch(conf) if watch is not None else None,
            )
        except (UndefinedBehaviorError, UpstreamAssertionError):
            continue
        found.append(what_if_of(conf, other.devices[0]))
    return tuple(found)


def what_if_of(conf: str, device_run: DeviceRun) -> WhatIf:
    """A replay that has been run, as one of several to compare."""
    timeline = device_run.timeline
    steps = np.maximum.accumulate(timeline.entry)
    stop = device_run.entries if device_run.stopped_at is None else device_run.stopped_at + 1
    row = np.searchsorted(steps, np.arange(stop), side="right") - 1
    reserved = timeline.reserved[np.maximum(row, 0)] if len(steps) else np.zeros(stop, np.int64)
    step = max(1, -(-device_run.entries // STRETCHES))
    return WhatIf(trial_of(conf, device_run), extremes_of(reserved, step))
