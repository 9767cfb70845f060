"""The events that blocks wait for, by stream.

Rule: a queue holds a stream's events in the order they were recorded; queues are walked in the
order of upstream's table, and one that has become empty is erased, which decides later walks.
Source: semantics 2.3, 12.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from allocsim.core.block import Block
from allocsim.core.hash_order import HashOrder

__all__ = ["EventQueues"]


class EventQueues:
    """The queues of one device."""

    __slots__ = ("_queues",)

    def __init__(self, hash_of: Callable[[int], int]) -> None:
        self._queues: HashOrder[int, deque[tuple[int, Block]]] = HashOrder(hash_of)

    def __len__(self) -> int:
        return len(self._queues)

    def push(self, stream: int, number: int, block: Block) -> None:
        """Queue event `number` of `stream` for `block`."""
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = deque()
        queue.append((number, block))

    def walk(self) -> Iterator[tuple[int, deque[tuple[int, Block]]]]:
        """(stream, queue) in table order; queues left empty by the caller are erased."""
        for stream in self._queues:
            queue = self._queues[stream]
            yield stream, queue
            if not queue:
                del self._queues[stream]
