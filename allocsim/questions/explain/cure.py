"""A setting under which a recording goes through, found by replaying it under a few.

Rule: nothing is recommended that a replay of the same recording, on the same device memory and
release, has not proved.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.engine import DeviceRun, Setting, Trial, Trials, trial_of_run
from allocsim.measures import usual_settings
from allocsim.questions.explain.shortage import shortages_of

__all__ = ["Cure", "find_cure", "is_worth_a_search"]

_WASTE_SHARE = 8
"""Idle memory at the peak is worth a search from this part of the peak (1/8)."""

_LEAST_SAVING = 20
"""Where nothing failed, a setting must save this part of the peak (1/20) to be named."""


@dataclass(frozen=True, slots=True)
class Cure:
    """The outcome of a search on one device.

    trials: of the settings that PyTorch would survive.
    best: the trial to paste, None if none helps.
    entries_left: entries that the recording has after the error; None if nothing failed, or the
        failure is not in the recording.
    """

    device: int
    device_memory: int | None
    baseline: Trial
    trials: tuple[Trial, ...]
    best: Trial | None
    entries_left: int | None


def is_worth_a_search(device_run: DeviceRun) -> bool:
    """Whether it ran out of memory that a setting could find, or an eighth of its peak was idle."""
    peak = device_run.peak
    shortages = shortages_of(device_run)
    if any(shortage.cause == "impossible" for shortage in shortages):
        return False
    return bool(shortages) or peak.idle * _WASTE_SHARE > peak.reserved


def find_cure(trials: Trials, setting: Setting, device_run: DeviceRun) -> Cure:
    """Try each of the usual settings on one device of a recording and pick the best.

    device_run: its replay under `setting`, whose device memory is kept.  Among settings that go
    through, the one with the fewest retries, then the lowest peak of reserved memory.
    """
    memory = device_run.device_memory
    tried = [
        trials.under(each, memory)
        for each in usual_settings(setting.config(trials.prepared.release))
    ]
    tried = [trial for trial in tried if trial.error is None]
    baseline = trial_of_run(setting.conf, device_run)
    last = device_run.ooms[-1] if device_run.ooms else None
    return Cure(
        device=device_run.device,
        device_memory=memory,
        baseline=baseline,
        trials=tuple(tried),
        best=_best(baseline, tried),
        entries_left=(
            device_run.entries - 1 - last.entry if last is not None and last.is_recorded else None
        ),
    )


def _best(baseline: Trial, trials: list[Trial]) -> Trial | None:
    good = [trial for trial in trials if trial.goes_through]
    best = min(
        good, key=lambda trial: (trial.num_alloc_retries, trial.peak_reserved_bytes), default=None
    )
    if best is None or not baseline.goes_through:
        return best
    saved = baseline.peak_reserved_bytes - best.peak_reserved_bytes
    return best if saved * _LEAST_SAVING >= baseline.peak_reserved_bytes else None
