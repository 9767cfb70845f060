"""A setting under which a recording goes through, found by replaying it under a few.

Rule: nothing is recommended that a replay of the same recording, on the same device memory and
release, has not proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.engine import (
    DeviceRun,
    Prepared,
    Setting,
    SimulatedOom,
    Trial,
    Trials,
    releases_needed,
    trial_of_run,
)
from allocsim.measures import usual_settings
from allocsim.questions.explain.shortage import shortages_of

__all__ = ["Cure", "entries_after", "find_cure", "is_worth_a_search", "needed_by"]

_WASTE_SHARE = 8  # idle memory at the peak is worth a search from this part of the peak (1/8)
_LEAST_SAVING = 20
"""Where nothing failed, a setting must save this part of the peak (1/20) to be named."""


@dataclass(frozen=True, slots=True)
class Cure:
    """The outcome of a search on one device.

    trials: of the settings that PyTorch would survive.
    best: the trial to paste, None if none helps or none can be proved.
    is_withheld: the replay is not the recorded run, so that nothing is proved by others.
    needs: which releases read the best as meant, in words; None where all do that the recording
        can come from.
    entries_left: see `entries_after`.
    """

    device: int
    device_memory: int | None
    baseline: Trial
    trials: tuple[Trial, ...]
    best: Trial | None
    entries_left: int | None
    is_withheld: bool = False
    needs: str | None = None


def is_worth_a_search(device_run: DeviceRun) -> bool:
    """Whether a setting could help: memory ran out, or an eighth of the peak was idle.

    False where a request was larger than the device.
    """
    peak, causes = device_run.peak, [shortage.cause for shortage in shortages_of(device_run)]
    is_wasteful = peak.idle * _WASTE_SHARE > peak.reserved
    return "impossible" not in causes and (bool(causes) or is_wasteful)


def find_cure(trials: Trials, setting: Setting, device_run: DeviceRun) -> Cure:
    """Try each of the usual settings on one device of a recording and pick the best.

    device_run: its replay under `setting`, whose device memory is kept.
    The best has the fewest retries, then the lowest peak of reserved memory.
    """
    memory = device_run.device_memory
    usual = usual_settings(setting.config(trials.prepared.release))
    tried = [trial for each in usual if (trial := trials.under(each, memory)).error is None]
    baseline = trial_of_run(setting.conf, device_run)
    best = _best(baseline, tried) if device_run.parting is None else None
    return Cure(
        device=device_run.device,
        device_memory=memory,
        baseline=baseline,
        trials=tuple(tried),
        best=best,
        entries_left=entries_after(device_run, device_run.ooms),
        is_withheld=device_run.parting is not None,
        needs=None if best is None else needed_by(trials.prepared, best.conf),
    )


def needed_by(prepared: Prepared, conf: str) -> str | None:
    """`releases_needed` for a setting that was proved on a recording."""
    return releases_needed(conf, prepared.release, prepared.releases)


def entries_after(device_run: DeviceRun, ooms: Sequence[SimulatedOom]) -> int | None:
    """Entries after the last of `ooms`; None if there is none, or it is not in the recording."""
    if not ooms or not ooms[-1].is_recorded:
        return None
    return device_run.entries - 1 - ooms[-1].entry


def _best(baseline: Trial, trials: list[Trial]) -> Trial | None:
    good = [trial for trial in trials if trial.goes_through]
    best = min(
        good, key=lambda trial: (trial.num_alloc_retries, trial.peak_reserved_bytes), default=None
    )
    if best is None or not baseline.goes_through:
        return best
    saved = baseline.peak_reserved_bytes - best.peak_reserved_bytes
    return best if saved * _LEAST_SAVING >= baseline.peak_reserved_bytes else None
