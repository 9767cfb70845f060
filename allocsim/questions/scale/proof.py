"""Whether a law holds where there is a recording that it was not made from.

Rule: what is compared is what the law is for, the peak of reserved memory: the check's own requests
and those that the law gives, both played under the same settings.  Requests that differ are
counted and named: temporary storage of sorts and the like follows no law to the byte, and is no
harm where the peak is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allocsim.engine import Drive, fold_allocated
from allocsim.errors import RecordingError
from allocsim.questions.scale.growing import Growing, refuse_otherwise_grown
from allocsim.questions.scale.law import Law, Sample
from allocsim.questions.scale.play import drive_at, plan_at
from allocsim.units import format_size

__all__ = ["Check", "checks_of"]


@dataclass(frozen=True, slots=True)
class Check:
    """A recording that the law predicted.

    path, text: the file and its sizes.
    peak_reserved_bytes: by the law, and by its own requests as well.
    missed: requests that the law gives other sizes; largest_miss: bytes.
    """

    path: str
    text: str
    peak_reserved_bytes: int
    missed: int
    largest_miss: int


def checks_of(law: Law | Growing) -> tuple[Check, ...]:
    """The checks that there are recordings for.

    Raises RecordingError for the first by which the law does not hold.
    """
    return tuple(_check(law.settled(law.complete(each.at)), each) for each in law.checks)


def _check(law: Law, sample: Sample) -> Check:
    refuse_otherwise_grown(law, sample)
    own = sample.program.prepared
    requested = law.requested_at(sample.at)
    said = _peak(drive_at(law, plan_at(law, requested), own.recorded, None))
    real = _peak(own.drive(own.recorded, None, folder=fold_allocated))
    miss = np.abs(requested.size - sample.program.size)
    if said != real:
        first = int(np.argmax(miss != 0))
        row = int(sample.program.requests[first])
        size = format_size(int(requested.size[first]))
        raise RecordingError(
            sample.path,
            f"does not follow the law of the others: {format_size(real)} reserved at the peak, "
            f"by the law {format_size(said)}; first {sample.program.told(row)}, by the law {size}",
        )
    return Check(sample.path, sample.text, said, int(np.count_nonzero(miss)), int(miss.max()))


def _peak(drive: Drive) -> int:
    return drive.allocator.statistics().all.reserved_bytes.peak
