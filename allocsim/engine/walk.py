"""A recording under its own settings, taken step by step.

Rule: what happens is what `replay` drives, driver bases dictated, so that every address is the
recorded one; only who says "next" differs.
"""

from __future__ import annotations

import numpy as np

from allocsim.core import CachingAllocator
from allocsim.engine.as_recorded import drive_as_recorded
from allocsim.engine.drive import PAUSE_EVERY
from allocsim.engine.plan import Step, StepKind
from allocsim.engine.prepared import Prepared
from allocsim.engine.proof import parting_of
from allocsim.engine.result import Parting, SimulatedOom
from allocsim.errors import RecordingError
from allocsim.trace import Action

__all__ = ["Walk"]

_REQUESTS = (
    StepKind.ALLOC, StepKind.OOM, StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE,
    StepKind.EMPTY_CACHE,
)  # fmt: skip
_SILENT = tuple(kind for kind in StepKind if kind not in _REQUESTS)
"""Steps that ask the allocator for nothing: the driver, pools, settings."""


class Walk:
    """A device of a recording on its way.

    allocator: as it is now; it keeps its history.  at: the number of the next step.
    parting: where the walk is not the recorded run any more, None: nowhere.
    """

    parting: Parting | None

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self._drive, _, self.notes = drive_as_recorded(prepared, prepared.recorded, None)
        self.parting = parting_of(prepared)
        self._drive.fidelity = None
        self.at = 0

    @property
    def allocator(self) -> CachingAllocator:
        """The model as it is now."""
        return self._drive.allocator

    def go_to(self, entry: int) -> None:
        """Drive everything before the request that `entry` belongs to.

        Raises RecordingError if the recording has no such entry, ValueError if it is passed.
        """
        if not 0 <= entry < len(self.prepared.trace):
            what = f"there is no such entry; expected 0 to {len(self.prepared.trace) - 1}"
            raise RecordingError(self.prepared.path, what, entry=entry)
        action, addr = self.prepared.trace.action, self.prepared.trace.addr
        is_end = entry > 0 and action[entry] == Action.FREE_COMPLETED
        if is_end and action[entry - 1] == Action.FREE_REQUESTED and addr[entry - 1] == addr[entry]:
            entry -= 1
        steps = self._drive.plan.steps.entry
        target = self.at + int(
            np.argmax(np.append(steps[self.at :], len(self.prepared.trace)) >= entry)
        )
        for start in range(self.at, target, PAUSE_EVERY):
            self._drive._run_some(start, min(start + PAUSE_EVERY, target))
            self.allocator.take_history()
        self.at = target

    def upcoming(self) -> tuple[int, Step] | None:
        """The entry and the step of the next request, everything silent before it driven; None
        at the end."""
        steps = self._drive.plan.steps
        while self.at < len(steps) and steps.kind[self.at] in _SILENT:
            self.take()
        if self.at == len(steps):
            return None
        return int(steps.entry[self.at]), next(steps.rows(self.at, self.at + 1))

    def address_of(self, kind: StepKind, handle: int) -> int | None:
        """Where the block lies that a step of a recorded address frees; None if it is not there."""
        block = self.allocator.named_blocks.get(handle)
        if kind == StepKind.FREE_COMPLETE:
            free = self._drive._waiting.get(handle)
            block = None if free is None else free.block
        return None if block is None else block.ptr

    def take(self) -> SimulatedOom | None:
        """Drive the next step; its out-of-memory error, if it has one."""
        known = len(self._drive.ooms)
        self._drive._run_some(self.at, self.at + 1)
        self.at += 1
        return self._drive.ooms[-1] if len(self._drive.ooms) > known else None
