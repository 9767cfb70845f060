"""Replay of a recording under its own settings, one request at a time.

It runs the same steps as `replay` and uses the recorded addresses of the driver, but the caller
decides when the next step runs.
"""

from __future__ import annotations

import numpy as np

from allocsim.core import ReplayAllocator
from allocsim.errors import RecordingError
from allocsim.recording import Action
from allocsim.replaying.prepared import Prepared
from allocsim.replaying.proof import parting_of
from allocsim.replaying.setup import drive_as_recorded
from allocsim.simulation import PAUSE_EVERY, Parting, SimulatedOom, Step, StepKind

_REQUESTS = (
    StepKind.ALLOC, StepKind.OOM, StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE,
    StepKind.EMPTY_CACHE,
)  # fmt: skip
_SILENT = tuple(kind for kind in StepKind if kind not in _REQUESTS)
"""Kinds of steps other than malloc, free and empty_cache: driver, pools, settings."""


class Walk:
    """Step-by-step replay of one device.

    at: number of the next step.
    notes: sentences on inferred facts.
    parting: first difference of the whole replay from the recording; None if it is exact.
    """

    parting: Parting | None

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self._drive, _, self.notes = drive_as_recorded(prepared, prepared.recorded, None)
        self.parting = parting_of(prepared)  # by a separate replay; this one is not compared
        self._drive.fidelity = None
        self.at = 0

    @property
    def allocator(self) -> ReplayAllocator:
        """Allocator in its current state, with its history."""
        return self._drive.allocator

    def go_to(self, entry: int) -> None:
        """Run all steps before the request or free that `entry` belongs to.

        Raises RecordingError if the recording has no such entry.
        """
        if not 0 <= entry < len(self.prepared.trace):
            what = f"there is no such entry; expected 0 to {len(self.prepared.trace) - 1}"
            raise RecordingError(self.prepared.path, what, entry=entry)
        action, addr = self.prepared.trace.action, self.prepared.trace.addr
        # The completion of an immediate free belongs to the step of its free_requested.
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
        """Run steps up to the next call of malloc, free or empty_cache; return its entry and step.

        None at the end.
        """
        steps = self._drive.plan.steps
        while self.at < len(steps) and steps.kind[self.at] in _SILENT:
            self.take()
        if self.at == len(steps):
            return None
        return int(steps.entry[self.at]), next(steps.rows(self.at, self.at + 1))

    def address_of(self, kind: StepKind, handle: int) -> int | None:
        """Return the address, in this replay, of the block that a free would free; else None.

        kind: kind of the step.
        handle: recorded address of the block.
        """
        block = self.allocator.named_blocks.get(handle)
        if kind == StepKind.FREE_COMPLETE:
            free = self._drive._waiting.get(handle)
            block = None if free is None else free.block
        return None if block is None else block.ptr

    def take(self) -> SimulatedOom | None:
        """Run the next step, and return its out-of-memory error, or None."""
        known = len(self._drive.ooms)
        self._drive._run_some(self.at, self.at + 1)
        self.at += 1
        return self._drive.ooms[-1] if len(self._drive.ooms) > known else None
