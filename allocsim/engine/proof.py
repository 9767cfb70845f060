"""Where the replay as recorded leaves the recording, and whether its short ways change anything.

Rule: a recording is proved once, when somebody asks; the proof is kept with what is prepared.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from allocsim.engine.as_recorded import drive_as_recorded, is_recorded_device
from allocsim.engine.fidelity import FidelityCheck
from allocsim.engine.left_open import asks_moments
from allocsim.engine.prepared import Prepared
from allocsim.engine.quiet import Probe, Quiet, is_told_by_entries, moments_of
from allocsim.engine.result import DeviceRun, Parting
from allocsim.errors import AllocsimError

__all__ = ["FindsParting", "difference_step_by_step", "looks_at_moments", "parting_of"]


def parting_of(prepared: Prepared) -> Parting | None:
    """Where the replay as recorded leaves the recording; it is made once to find out.

    None: nowhere, or there is none, since another release is asked for.
    """
    if not prepared.is_own_release:
        return None
    if not prepared.proofs:
        prepared.proofs.append(_proved(prepared))
    return prepared.proofs[0]


@dataclass(frozen=True, slots=True)
class FindsParting:
    """`parting_of` a device, when it is called; pickled, the answer in place of the recording."""

    prepared: Prepared

    def __call__(self) -> Parting | None:
        return parting_of(self.prepared)

    def __reduce__(self) -> tuple[type[partial[Parting | None]], tuple[object, ...]]:
        return partial, (_known, self())


def _known(parting: Parting | None) -> Parting | None:
    return parting


def _proved(prepared: Prepared) -> Parting | None:
    """`parting_of`, by a drive that looks at the moments of `quiet` on its way.

    A proof that holds is the recorded run, which is what is asked about; a drive for the moments
    alone would be a third of a what-if's time.
    """
    quiet: list[int] = []
    moments = moments_of(prepared) if looks_at_moments(prepared) else []
    steps = np.flatnonzero(prepared.plan.steps.is_undictated)
    probe = partial(Probe, moments=steps[moments].tolist(), quiet=quiet)
    drive, _, _ = drive_as_recorded(prepared, prepared.recorded, None, make=probe)
    assert drive.fidelity is not None
    with suppress(AllocsimError):  # what PyTorch would not survive did not happen
        drive.run()
    fidelity = drive.fidelity.result(drive.allocator)
    parting = fidelity.parting_of(prepared.trace.device)
    if parting is None and moments:
        after = tuple(moments[number] for number in quiet)
        prepared.looked.append(Quiet(after, len(moments)))
    return parting


def looks_at_moments(prepared: Prepared) -> bool:
    """Whether a proof finds out `Prepared.looked` on its way.

    It does where a what-if has to know the moments, and only a drive tells them.
    """
    return asks_moments(prepared) and not is_told_by_entries(prepared)


def difference_step_by_step(prepared: Prepared, device_run: DeviceRun) -> str | None:
    """What a replay as recorded comes to otherwise if every step is taken singly; None: nothing.

    It keeps no history either: both are shorter ways through the model that must change nothing.
    device_run: the replay as recorded that took rows of steps and kept a history.
    """
    memory = device_run.device_memory
    asked = memory if is_recorded_device(prepared, memory) else None
    drive, _, _ = drive_as_recorded(prepared, prepared.recorded, asked, is_stepwise=True)
    drive.run()
    stats = drive.allocator.memory_stats()
    for key, value in device_run.stats.items():
        if stats[key] != value:
            return f"{key} is {stats[key]:,} step by step and {value:,} otherwise"
    check = FidelityCheck(prepared.trace)
    segments = check.result(drive.allocator).segments_matched
    if device_run.fidelity is not None and segments != device_run.fidelity.segments_matched:
        return f"{segments} segments are as recorded step by step"
    return None
