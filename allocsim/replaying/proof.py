"""Proof of a recording: the first divergence of its replay as recorded.

The proof is made once, on first use, and kept with the prepared device.  `difference_step_by_step`
checks that the optimizations of the replay do not change its result.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from allocsim.errors import AllocsimError
from allocsim.fidelity import FidelityCheck
from allocsim.inference import Probe, Quiet, entries_suffice, moments_of, needs_quiet_moments
from allocsim.replaying.prepared import Prepared
from allocsim.replaying.setup import drive_as_recorded, is_recorded_device
from allocsim.simulation import DeviceRun, Parting

__all__ = ["PartingFinder", "difference_step_by_step", "needs_probe", "parting_of"]


def parting_of(prepared: Prepared) -> Parting | None:
    """Return the first divergence of the replay as recorded; runs that replay on first use.

    None if the replay is exact, or if the modelled release cannot have written the recording.
    """
    if not prepared.is_own_release:
        return None
    if not prepared.proofs:
        prepared.proofs.append(_prove(prepared))
    return prepared.proofs[0]


@dataclass(frozen=True, slots=True)
class PartingFinder:
    """Function that returns `parting_of(prepared)`; pickling stores the result."""

    prepared: Prepared

    def __call__(self) -> Parting | None:
        return parting_of(self.prepared)

    def __reduce__(self) -> tuple[type[partial[Parting | None]], tuple[object, ...]]:
        return partial, (_known, self())


def _known(parting: Parting | None) -> Parting | None:
    return parting


def _prove(prepared: Prepared) -> Parting | None:
    """Return the first divergence, and keep the quiet moments of an exact replay.

    A separate replay for the quiet moments would take a third of the time of a what-if.
    """
    quiet: list[int] = []
    moments = moments_of(prepared.free_plan) if needs_probe(prepared) else []
    # Moments are numbered in `free_plan`, but this replay uses the plan with the driver's answers.
    steps = np.flatnonzero(prepared.plan.steps.is_of_program)
    probe = partial(Probe, moments=steps[moments].tolist(), quiet=quiet)
    drive, _, _ = drive_as_recorded(prepared, prepared.recorded, None, make=probe)
    assert drive.fidelity is not None
    with suppress(AllocsimError):  # counts as a divergence: the recorded program went on
        drive.run()
    fidelity = drive.fidelity.result(drive.allocator)
    parting = fidelity.parting_of(prepared.trace.device)
    if parting is None and moments:
        after = tuple(moments[number] for number in quiet)
        prepared.quiet_of_proof.append(Quiet(after, len(moments)))
    return parting


def needs_probe(prepared: Prepared) -> bool:
    """Return True if a proof also has to find the quiet moments.

    They are needed for the range of a what-if, unless the entries alone show them.
    """
    return needs_quiet_moments(prepared, prepared.plan) and not entries_suffice(
        prepared.trace, prepared.plan
    )


def difference_step_by_step(prepared: Prepared, device_run: DeviceRun) -> str | None:
    """Describe how a step-by-step replay without history differs from a normal one, or None.

    device_run: normal replay as recorded.
    """
    memory = device_run.device_memory
    recorded = memory if is_recorded_device(prepared, memory) else None
    drive, _, _ = drive_as_recorded(prepared, prepared.recorded, recorded, is_stepwise=True)
    drive.run()
    stats = drive.allocator.memory_stats()
    for key, value in device_run.stats.items():
        if stats[key] != value:
            return f"{key} is {stats[key]:,} step by step, but {value:,} in a normal replay"
    check = FidelityCheck(prepared.trace)
    segments = check.result(drive.allocator).segments_matched
    if device_run.fidelity is not None and segments != device_run.fidelity.segments_matched:
        return f"{segments} segments match the recording step by step"
    return None
