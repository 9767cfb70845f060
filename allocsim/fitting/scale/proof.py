"""Check of a law against recordings from which it was not derived.

Rule: the peak of reserved memory is compared. The recorded requests and the law's requests are
    replayed under the same settings. Requests that differ are counted and reported: temporary
    storage of sorts, for instance, follows no exact law. It does not refute the law if the peak is
    the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allocsim.errors import RecordingError
from allocsim.fitting.scale.growing import Growing, refuse_otherwise_grown
from allocsim.fitting.scale.law import Law, Sample
from allocsim.fitting.scale.play import drive_at, plan_at
from allocsim.simulation import Drive, fold_allocated
from allocsim.units import format_size

__all__ = ["Check", "checks_of"]


@dataclass(frozen=True, slots=True)
class Check:
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


def checks_of(law: Law | Growing) -> tuple[Check, ...]:
    """Return the result for each recording that the law was not derived from.

    Raises RecordingError for the first recording that refutes the law.
    """
    return tuple(_check(law.settled(law.complete(each.at)), each) for each in law.checks)


def _check(law: Law, sample: Sample) -> Check:
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
    return Check(sample.path, sample.text, predicted, int(np.count_nonzero(miss)), int(miss.max()))


def _peak(drive: Drive) -> int:
    return drive.allocator.statistics().all.reserved_bytes.peak
