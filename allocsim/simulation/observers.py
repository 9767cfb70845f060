"""Observers of a running replay, which measure its peak or its use of host memory.

An observer must not change the allocator, and must copy the values that it keeps, because blocks
change later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from allocsim.core import Block, ReplayAllocator, SavedBytes, TraceEntry
from allocsim.simulation.result import PeakState, SimulatedOom, Spill

Progress = Callable[[int, int], None]
"""Function called with (entries done, entries in total)."""


class GiveUpError(Exception):
    """Exception that an observer raises to end the replay."""


class Observer:
    """Base class of observers, with a method for each kind of event of a replay.

    keeps_history: True to make the allocator record its history and pass it to `history`.
    """

    keeps_history = False

    def began(self, allocator: ReplayAllocator) -> None: ...
    def history(self, entries: Sequence[TraceEntry]) -> None:
        """Handle the entries since the last call; called only if `keeps_history` is True."""

    def out_of_memory(
        self, allocator: ReplayAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None: ...
    def grew(self, allocator: ReplayAllocator, entry: int) -> None:
        """Handle a request at `entry` that succeeded and obtained or released reserved memory."""


class PeakWatch(Observer):
    """Observer that keeps the allocated and active bytes at the first peak of reserved memory.

    device_bytes: peak memory in use on the device, in bytes.
    Only one `PeakWatch` can observe an allocator, because the allocator saves only one state.
    """

    def __init__(self) -> None:
        # Plain numbers, because an object for each new peak would take longer.
        self._reserved = self._entry = -1
        self._allocator: ReplayAllocator | None = None
        self.device_bytes = 0

    def began(self, allocator: ReplayAllocator) -> None:
        self._allocator = allocator
        self.grew(allocator, -1)

    def grew(self, allocator: ReplayAllocator, entry: int) -> None:
        self.device_bytes = max(self.device_bytes, allocator.device.held)
        reserved = allocator.reserved_bytes
        if reserved > self._reserved:  # not >=: the first of equal peaks counts
            self._reserved, self._entry = reserved, entry
            allocator.save_bytes()

    @property
    def state(self) -> PeakState:
        saved = SavedBytes() if self._allocator is None else self._allocator.saved_bytes()
        return PeakState(
            entry=self._entry,
            reserved=self._reserved,
            allocated=saved.allocated,
            active=saved.active,
            inactive_split=saved.inactive_split,
        )


class SpillWatch(Observer):
    """Observer that measures the host memory that the driver provides to a full device."""

    def __init__(self) -> None:
        self._began: int | None = None
        self._worst = -1
        self._most = 0

    def began(self, allocator: ReplayAllocator) -> None:
        self.grew(allocator, -1)

    def grew(self, allocator: ReplayAllocator, entry: int) -> None:
        spilled = allocator.device.spilled
        if spilled and self._began is None:
            self._began = entry
        if spilled > self._most:
            self._most, self._worst = spilled, entry

    def result(self, lent: int, at_end: int) -> Spill:
        """Return the use of host memory.

        lent, at_end: bytes of host memory that were available, and in use at the end.
        """
        return Spill(lent, self._most, self._began, self._worst, at_end)
