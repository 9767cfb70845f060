"""Who wrote each entry of a history: the part of the model that was at work at that moment.

Rule: nothing is concluded from an entry's looks.  The code objects of the model's own functions
are compared with those on the stack while the entry is written, so that a release by garbage
collection and one by a retry are told apart for certain.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType

from allocsim.core import CachingAllocator, HistoryEntry
from allocsim.core.heap import Heap
from allocsim.core.pending import PendingFrees
from allocsim.core.reclaim import collect_garbage, release_available

__all__ = ["OTHER", "Witness", "Written", "witnessed"]

OTHER = "request"
_WORK: dict[CodeType, str] = {
    PendingFrees.poll.__code__: "poll",
    PendingFrees.synchronize.__code__: "wait",
    collect_garbage.__code__: "garbage collection",
    release_available.__code__: "release oversize",
    CachingAllocator._release_cached.__code__: "release cached",
    CachingAllocator._release_freeable.__code__: "release cached",
    CachingAllocator._new_memory.__code__: "driver",
}


@dataclass(frozen=True, slots=True)
class Written:
    """An entry.  work: what wrote it, `OTHER` for the request itself.

    reserved, device_free: bytes as the entry was written.
    """

    entry: HistoryEntry
    work: str
    reserved: int
    device_free: int


class Witness(list[HistoryEntry]):
    """A history that notes beside each entry who wrote it."""

    def __init__(self, allocator: CachingAllocator) -> None:
        super().__init__()
        self.written: list[Written] = []
        self._allocator = allocator

    def append(self, entry: HistoryEntry, /) -> None:
        """Called by the heap."""
        super().append(entry)
        heap = self._allocator.heap
        free = self._allocator.device.free
        self.written.append(Written(entry, _work(), heap.reserved, free))


def _work() -> str:
    frame = inspect.currentframe()
    while frame is not None:
        work = _WORK.get(frame.f_code)
        if work is not None:
            return work
        frame = frame.f_back
    return OTHER


def witnessed(allocator: CachingAllocator, act: Callable[[], None]) -> tuple[Written, ...]:
    """The entries that `act` leaves, which the allocator's own history gets as well.

    Raises ValueError for an allocator that keeps no history.
    """
    heap: Heap = allocator.heap
    history = heap.trace
    if history is None:
        raise ValueError("the allocator keeps no history; expected record_history=True")
    witness = Witness(allocator)
    heap.trace = witness
    try:
        act()
    finally:
        heap.trace = history
        history.extend(witness)
    return tuple(witness.written)
