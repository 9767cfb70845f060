"""Proof of a recording: its replay under the recorded settings, compared with every entry.

If that replay is exact, what-ifs of the recording start from a correct model of the run.  The proof
is made once, on first use, and kept with the prepared device.  `difference_step_by_step` checks
that the optimizations of replays do not change their result.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from allocsim.errors import AllocsimError
from allocsim.fidelity import FidelityCheck
from allocsim.inference import Probe, Quiet, entries_suffice, moments_of, needs_quiet_moments
from allocsim.replaying.prepared import Prepared
from allocsim.replaying.setup import drive_as_recorded, is_recorded_device
from allocsim.simulation import DeviceRun, Parting, Run


def parting_of(prepared: Prepared) -> Parting | None:
    """Return the first difference of the baseline from the recording; None if it is exact.

    The first call for `prepared` replays the baseline, and later calls return the kept result.
    None too if the modelled release cannot have written the recording.
    """
    if not prepared.is_own_release:
        return None
    if not prepared.proofs:
        prepared.proofs.append(_prove(prepared))
    return prepared.proofs[0]


def with_proof(run: Run) -> Run:
    """Return `run` with the `parting` of each device computed, by a replay if it is not known."""
    proved = (replace(each, find_parting=partial(_known, each.parting)) for each in run.devices)
    return replace(run, devices=tuple(proved))


@dataclass(frozen=True, slots=True)
class PartingFinder:
    """Function that returns the first difference of a device's baseline from the recording.

    The first call computes it by a replay.  Pickling does too, so that worker processes receive
    the result instead of the recording.
    """

    prepared: Prepared

    def __call__(self) -> Parting | None:
        return parting_of(self.prepared)

    def __reduce__(self) -> tuple[type[partial[Parting | None]], tuple[object, ...]]:
        return partial, (_known, self())


def _known(parting: Parting | None) -> Parting | None:
    return parting


def _prove(prepared: Prepared) -> Parting | None:
    """Replay the baseline, return its first difference, and keep the quiet moments if it is exact.

    Quiet moments are steps after which empty_cache would leave no entry (`hidden_calls.py`).
    A separate replay to find them would take a third of the time of a what-if.
    """
    quiet: list[int] = []
    moments = moments_of(prepared.free_plan) if needs_probe(prepared) else []
    # `moments` are step numbers of `free_plan`; this replay uses `plan`, which has more steps.
    steps = np.flatnonzero(prepared.plan.steps.is_of_program)
    probe = partial(Probe, moments=steps[moments].tolist(), quiet=quiet)
    drive, _, _ = drive_as_recorded(prepared, prepared.recorded, None, make=probe)
    assert drive.fidelity is not None
    with suppress(AllocsimError):  # counts as a difference: the recorded program went on
        drive.run()
    fidelity = drive.fidelity.result(drive.allocator)
    parting = fidelity.parting_of(prepared.trace.device)
    if parting is None and moments:
        after = tuple(moments[number] for number in quiet)
        prepared.quiet_of_proof.append(Quiet(after, len(moments)))
    return parting


def needs_probe(prepared: Prepared) -> bool:
    """Return True if the proof must also find the quiet moments.

    This is so if the what-if range depends on them, and the entries alone do not show them.
    """
    return needs_quiet_moments(prepared, prepared.plan) and not entries_suffice(
        prepared.trace, prepared.plan
    )


def difference_step_by_step(prepared: Prepared, device_run: DeviceRun) -> str | None:
    """Replay without batches of steps, and describe a difference from a normal replay, or None.

    device_run: normal replay under the recorded settings.
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
