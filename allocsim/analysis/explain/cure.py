"""Settings tried on each device of a recording, and the recommended one.

A recommendation is always proved by a replay of the same recording on the same device memory and
release.  `allocsim.recommend` makes one recommendation for all devices of a program, since
they share the environment variable.
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
    """Result of a search on one device.

    baseline: trial under the present settings.
    trials: trials of the settings that PyTorch accepts.
    best: recommended trial; None if none helps or none is proved.
    entries_left: see `entries_after`.
    is_withheld: True if the replay differs from the recorded run, so that nothing is proved.
    needs: releases that read the best setting as intended, in words; None if these include every
        release that the recording can come from.
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
    """Return the cure of each device; `cases` are those of the recommendation."""
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
    """Return `releases_needed` for a setting that was proved on a recording."""
    return releases_needed(conf, prepared.release, prepared.releases)


def entries_after(device_run: DeviceRun, ooms: Sequence[SimulatedOom]) -> int | None:
    """Return the number of entries after the last error; None if it is not in the recording."""
    if not ooms or not ooms[-1].is_recorded:
        return None
    return device_run.entries - 1 - ooms[-1].entry
