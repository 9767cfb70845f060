"""Steps of a plan that follow from one entry each, without inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.inference.gaps import EntryMasks
from allocsim.recording import Action, Trace
from allocsim.simulation import PlannedAt, StepKind, Steps, joined, spread

__all__ = ["PlainSteps", "capacity_from_oom"]


def capacity_from_oom(trace: Trace, reserved_at_start: int) -> int | None:
    """Return free plus reserved bytes at the first `oom` entry; None without such an entry."""
    ooms = np.flatnonzero(any_of(trace.action, (Action.OOM,)))[:1]
    if not len(ooms):
        return None
    return int(trace.reserved_after(ooms, reserved_at_start)[0]) + int(trace.addr[ooms[0]])


@dataclass(frozen=True, slots=True)
class PlainSteps:
    """Steps that follow from one entry each, without inference.

    kind: `StepKind` of each step.
    entry: number of the entry that each step comes from.  A DICTATE step comes from the entry of a
        segment; the request that obtains the segment is the next entry.
    """

    kind: NDArray[np.uint8]
    entry: NDArray[np.intp]

    @classmethod
    def of(cls, trace: Trace, masks: EntryMasks) -> PlainSteps:
        """Return the plain steps of `trace`."""
        entry = np.flatnonzero(masks.is_plain | masks.is_growth)
        is_alloc = any_of(trace.action[entry], (Action.ALLOC,))
        # A table lookup is five times faster than np.where on an unpredictable mask.
        kinds = (StepKind.FREE_REQUEST, StepKind.FREE, StepKind.ALLOC, StepKind.DICTATE)
        number = np.maximum(2 * is_alloc.view(np.uint8), masks.is_immediate[entry])
        number += 3 * masks.is_growth[entry].view(np.uint8)
        return cls(np.array(kinds, dtype=np.uint8).take(number), entry)

    def steps(self, trace: Trace, planned: Sequence[PlannedAt] = ()) -> Steps:
        """Return the plain steps with the planned steps inserted."""
        if not len(self.entry):
            none, address = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
            return joined(Steps(self.kind, self.entry, address, none, address), planned)
        places, (kind, entry, *added) = spread(planned)
        kinds, of = np.insert(self.kind, places, kind), np.insert(self.entry, places, 0)
        at = places + np.arange(len(places))
        columns: list[NDArray[Any]] = [
            column.take(of) for column in (trace.addr, trace.size, trace.stream)
        ]
        is_dictated = any_of(self.kind, (StepKind.DICTATE,))
        dictated = np.flatnonzero(np.insert(is_dictated, places, False))
        of[dictated] += 1
        columns[2][dictated] = trace.stream[of[dictated]]
        for column, new in zip(columns, added, strict=True):
            column[at] = np.array(new, dtype=column.dtype)
        of[at] = entry
        return Steps(kinds, of, *columns)
