"""The settings that were tried on each device of a recording, and the one that is recommended.

Rule: nothing is recommended that a replay of the same recording, on the same device memory and
release, has not proved; which one it is, `allocsim.measures.recommend` decides for all devices of
the program at once, since they share the variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.engine import DeviceRun, Prepared, SimulatedOom, Trial, releases_needed
from allocsim.measures import Case, Recommendation, WhyNot

__all__ = ["Cure", "cures_of", "entries_after", "needed_by"]


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


def cures_of(recommendation: Recommendation, cases: Sequence[Case]) -> tuple[Cure, ...]:
    """The part of each device in a recommendation; `cases` are those that it was made for."""
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
    """`releases_needed` for a setting that was proved on a recording."""
    return releases_needed(conf, prepared.release, prepared.releases)


def entries_after(device_run: DeviceRun, ooms: Sequence[SimulatedOom]) -> int | None:
    """Entries after the last of `ooms`; None if there is none, or it is not in the recording."""
    if not ooms or not ooms[-1].is_recorded:
        return None
    return device_run.entries - 1 - ooms[-1].entry
