"""Frees that wait: for events of other streams, for the end of a capture, or for a replay step.

A free records one event for each stream that used the block.  Only a malloc polls the event queues,
each queue up to the first event that has not passed.  A free inside a graph capture waits for the
end of the capture and then ignores streams recorded during it.  Source: semantics 2.3, 2.4, 5.5,
12.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from allocsim.core.block import Block
from allocsim.core.find_split_merge import Heap
from allocsim.core.hash_order import HashOrder
from allocsim.core.pool import PrivatePool
from allocsim.core.snapshot import Work


class EventQueues:
    """Event queues of one device, one for each stream."""

    __slots__ = ("_queues",)

    def __init__(self, hash_of: Callable[[int], int]) -> None:
        self._queues: HashOrder[int, deque[tuple[int, Block]]] = HashOrder(hash_of)

    def __len__(self) -> int:
        return len(self._queues)

    def push(self, stream: int, number: int, block: Block) -> None:
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = deque()
        queue.append((number, block))

    def walk(self) -> Iterator[tuple[int, deque[tuple[int, Block]]]]:
        """Yield streams and queues in upstream's order; erase queues that the caller empties."""
        for stream in self._queues:
            queue = self._queues[stream]
            yield stream, queue
            # The iteration above runs over a copy of the keys.
            if not queue:
                del self._queues[stream]


@dataclass(slots=True, eq=False)
class RequestedFree:
    """Free that has begun, and that a later step of a replay completes.

    block: block to free; None once the free is complete.

    A wait for all events may complete the free before that step.  Then both the address and the
    `Block` may be in use again, so only this object identifies the free.
    """

    block: Block | None


class PendingFrees:
    """Frees of one device that are not complete.

    is_waiting: True if polling could complete a free; stored, because every malloc reads it.

    After a graph capture, the model completes its deferred frees in the order of their requests.
    PyTorch 2.9 to 2.12 completes them in an order that differs from run to run.
    """

    __slots__ = ("_heap", "_queues", "_deferred", "_requested", "is_waiting")

    def __init__(self, heap: Heap, hash_of: Callable[[int], int]) -> None:
        self._heap = heap
        self._queues = EventQueues(hash_of)
        self._deferred: list[Block] = []
        self._requested: dict[RequestedFree, None] = {}
        self.is_waiting = False

    def add(self, block: Block, *, in_capture: bool) -> None:
        self._heap.free_later(block)
        self.is_waiting = True
        if in_capture:
            # Recording an event is not allowed during a capture.
            self._deferred.append(block)
        else:
            self._insert_events(block)

    @property
    def requested(self) -> tuple[RequestedFree, ...]:
        """Incomplete frees from `add_requested`, in the order that a wait for all events uses."""
        return tuple(self._requested)

    def add_requested(self, block: Block) -> RequestedFree:
        """Begin to free a block; calling `complete` with the returned object completes the free."""
        block.stream_uses = None
        # One event keeps the block active, although no queue has it.
        block.event_count = 1
        self._heap.free_later(block)
        free = RequestedFree(block)
        self._requested[free] = None
        return free

    def put_last(self, free: RequestedFree) -> None:
        """Move `free` to the end of the frees that a synchronization with all events completes."""
        if free in self._requested:
            del self._requested[free]
            self._requested[free] = None

    def adopt(self, blocks: dict[int, Block]) -> None:
        """Add frees that began before the simulation and are not complete.

        blocks: dictionary from address to freed block.
        """
        self._requested.update(dict.fromkeys(map(RequestedFree, blocks.values())))

    def complete(self, free: RequestedFree) -> bool:
        # A wait for all events may have completed the free before the replay step does.
        block, free.block = free.block, None
        if block is None:
            return False
        del self._requested[free]
        block.event_count = 0
        self._heap.complete_free(block)
        return True

    def process_events(self) -> None:
        """Complete the frees whose events have passed."""
        before, self._heap.work = self._heap.work, Work.POLL
        self._insert_events_deferred_until_no_capture()
        device = self._heap.device
        for stream, queue in self._queues.walk():
            while queue and device.is_done(stream, queue[0][0]):
                self._event_passed(queue.popleft()[1])
        self.is_waiting = bool(self._queues)
        self._heap.work = before

    def synchronize_and_free_events(self, of: PrivatePool | None = None) -> None:
        """Wait for all events and complete their frees.

        of: wait only for blocks of this private pool; None to wait for all blocks.
        """
        self._heap.stats.num_sync_all_streams += 1
        self._heap.work = Work.WAIT
        self._insert_events_deferred_until_no_capture()
        for stream, queue in self._queues.walk():
            # Events of other pools go back to the end of the queue, in the same order.
            for _ in range(len(queue)):
                number, block = queue.popleft()
                if of is not None and block.pool.owner is not of:
                    queue.append((number, block))
                    continue
                self._heap.device.wait_for(stream, number)
                self._event_passed(block)
        # The events of a replayed free are unknown, but this wait passes all of them.
        for free in self.requested:
            if of is None or (free.block is not None and free.block.pool.owner is of):
                self.complete(free)

    def _insert_events(self, block: Block) -> None:
        uses, block.stream_uses = block.stream_uses, None
        for stream in uses or ():
            block.event_count += 1
            self._queues.push(stream, self._heap.device.record_event(stream), block)

    def _event_passed(self, block: Block) -> None:
        block.event_count -= 1
        # A block used by several streams is free only after the last event.
        if block.event_count == 0:
            self._heap.complete_free(block)

    def _insert_events_deferred_until_no_capture(self) -> None:
        deferred, self._deferred = self._deferred, []
        for block in deferred:
            if self._remove_cudagraph_stream_uses(block):
                self._heap.complete_free(block)
            else:
                self._insert_events(block)

    def _remove_cudagraph_stream_uses(self, block: Block) -> bool:
        """Remove streams that record_stream added in a capture; return True if none is left."""
        uses, captured = block.stream_uses, block.capture_uses
        if uses is None or captured is None:
            return False
        block.capture_uses = None
        for stream in captured:
            if stream in uses:
                del uses[stream]
        if len(uses):
            return False
        block.stream_uses = None
        return True
