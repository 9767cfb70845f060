"""Replay of a law's program on the allocator model, and check against other recordings.

Rule: only the bytes of requests change. Order, freed blocks, streams and pools are those of the
first sample.

A check compares the peak of reserved memory. The recorded requests and the law's requests are
replayed under the same settings. Requests that differ are counted and reported: temporary storage
of sorts, for instance, follows no exact law. It does not refute the law if the peak is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from allocsim.errors import RecordingError
from allocsim.fitting.scale.growing import Growing, refuse_otherwise_grown
from allocsim.fitting.scale.law import Requested, Sample, ScalingLaw
from allocsim.simulation import Drive, Plan, Setting, fold_allocated
from allocsim.units import format_size


def plan_at(law: ScalingLaw, requested: Requested) -> Plan:
    """Return the steps of the law's program with the requests' bytes in `requested`."""
    program = law.program
    size = program.steps.size.copy()
    size[program.requests] = requested.size
    return replace(program.prepared.free_plan, steps=replace(program.steps, size=size))


def drive_at(law: ScalingLaw, plan: Plan, setting: Setting, device_memory: int | None) -> Drive:
    """Replay `plan`, the steps of a law's program, and return the allocator in its final state.

    Raises ConfigError for a refused setting.

    device_memory: bytes of the device, None for an unlimited device.
    """
    prepared = law.program.prepared
    return prepared.drive(setting, device_memory, plan=plan, folder=fold_allocated)


@dataclass(frozen=True, slots=True)
class LawCheck:
    """A recording whose peak the law predicted exactly.

    path, text: file and sizes of the recording.
    peak_reserved_bytes: peak of reserved memory in bytes, recorded and predicted.
    missed: number of requests for which the law gives other bytes.
    largest_miss: largest difference of one request, in bytes.
    """

    path: str
    text: str
    peak_reserved_bytes: int
    missed: int
    largest_miss: int


def checks_of(law: ScalingLaw | Growing) -> tuple[LawCheck, ...]:
    """Return the result for each recording that the law was not derived from.

    Raises RecordingError for the first recording that refutes the law.
    """
    return tuple(_check(law.settled(law.complete(each.at)), each) for each in law.checks)


def _check(law: ScalingLaw, sample: Sample) -> LawCheck:
    refuse_otherwise_grown(law, sample)
    own = sample.program.prepared
    requested = law.requested_at(sample.at)
    predicted = _peak(drive_at(law, plan_at(law, requested), own.recorded, None))
    recorded = _peak(own.drive(own.recorded, None, folder=fold_allocated))
    miss = np.abs(requested.size - sample.program.size)
    if predicted != recorded:
        first = int(np.argmax(miss != 0))
        row = int(sample.program.requests[first])
        size = format_size(int(requested.size[first]))
        raise RecordingError(
            sample.path,
            f"does not follow the law of the others: {format_size(recorded)} reserved at the peak, "
            f"by the law {format_size(predicted)}; first "
            f"{sample.program.described(row)}, by the law {size}",
        )
    return LawCheck(
        sample.path, sample.text, predicted, int(np.count_nonzero(miss)), int(miss.max())
    )


def _peak(drive: Drive) -> int:
    return drive.allocator.statistics().all.reserved_bytes.peak
