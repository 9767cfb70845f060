"""Settings that were tried on each device of a recording, and the recommended setting.

A setting is recommended only if a replay of this recording under it succeeds, with the same device
memory and release.  All devices of a program get the same recommendation, since they share the
environment variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.recommend import Case, Recommendation, WhyNot
from allocsim.replaying import Prepared, Trial
from allocsim.simulation import DeviceRun, SimulatedOom, releases_needed

__all__ = ["Cure", "cures_of", "entries_after", "needed_by"]


@dataclass(frozen=True, slots=True)
class Cure:
    """Result of a search for a setting that avoids out-of-memory errors, on one device.

    baseline: trial of the present settings.
    trials: trials of the settings that PyTorch accepts.
    best: trial of the recommended setting; None if no setting is recommended.
    entries_left: number of entries after the last recorded error; None if the recording has no such
        error.
    is_withheld: True if nothing is recommended because the replay differs from the recorded run.
    needs: releases with the same meaning of the best setting, in words; None if these include every
        release that may have written the recording.
    """

    device: int
    device_memory: int | None
    baseline: Trial
    trials: tuple[Trial, ...]
    best: Trial | None
    entries_left: int | None
    is_withheld: bool = False
    needs: str | None = None


def cures_of(recommendation: Recommendation, cases: Sequence[Case]) -> tuple[Cure, ...]:
    """Return the result for each device; `cases` must be those of `recommendation`."""
    best = recommendation.best
    return tuple(
        Cure(
            device=case.device_run.device,
            device_memory=case.device_run.device_memory,
            baseline=recommendation.baseline.trials[i],
            trials=tuple(offer.trials[i] for offer in recommendation.offers),
            best=None if best is None else best.trials[i],
            entries_left=entries_after(case.device_run, case.device_run.ooms),
            is_withheld=recommendation.why_not is WhyNot.WITHHELD,
            needs=recommendation.needs,
        )
        for i, case in enumerate(cases)
    )


def needed_by(prepared: Prepared, conf: str) -> str | None:
    """Return the releases where `conf` has the same meaning as in the replay, in words.

    Return None if these include every release that may have written the recording.
    """
    return releases_needed(conf, prepared.release, prepared.releases)


def entries_after(device_run: DeviceRun, ooms: Sequence[SimulatedOom]) -> int | None:
    """Return the number of entries after the last error; None if the error is not recorded."""
    if not ooms or not ooms[-1].is_recorded:
        return None
    return device_run.entries - 1 - ooms[-1].entry
