"""Convert requests and frees, in file order, to the columns of a trace.

Every free needs an earlier request.  If the file frees a block that it never requested, the block
existed before the first row, and its request is inserted at the front.  A free that names no block
frees the most recent live block of its size.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from allocsim.recording.action import Action
from allocsim.recording.fields import UINT64_MAX
from allocsim.recording.frames import FrameTable
from allocsim.recording.trace import Trace

__all__ = ["Blocks"]

_Row = tuple[int, int, int, int, int, int]
"""(action, address, bytes, stream, time, stack)"""

_UNKNOWN_STEP = 512
_PAGE = 2 << 20
"""Granularity of large segments, in bytes."""
_SMALL = 1 << 20
"""Largest request that is served from the small pool, in bytes."""


class Blocks:
    """Builder of one device's trace from the rows of a file."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._before: list[_Row] = []
        self._live: dict[Hashable, list[tuple[int, int, int]]] = {}
        self._named: set[Hashable] = set()
        self._next_name = 0
        self.n_lost = 0
        """Number of missing rows: frees before a second request of an address, and requests
        before a second free."""

    @property
    def n_before(self) -> int:
        """Number of blocks that existed before the first row."""
        return len(self._before)

    @property
    def bytes_before(self) -> int:
        """Bytes of the blocks that existed before the first row."""
        return sum(row[2] for row in self._before)

    @property
    def n_requests(self) -> int:
        """Number of requests in the file."""
        return sum(row[0] == Action.ALLOC for row in self._rows)

    def alloc(
        self, size: int, name: int | None, *, time: int, stack: int = -1, stream: int = 0,
        group: Hashable = None,
    ) -> None:  # fmt: skip
        """Add a request.

        name: id of the block, mostly its address; None if the file names no blocks.
        group: further property by which frees find a block without a name.
        """
        key = self._key(size, name, group)
        if name is not None and self._live.get(key):
            self.n_lost += 1
            self._end(key, time, -1)
        address = self._unused() if name is None else name
        self._live.setdefault(key, []).append((address, size, stream))
        if name is not None:
            self._named.add(key)
        self._rows.append((Action.ALLOC, address, size, stream, time, stack))

    def free(
        self, size: int, name: int | None, *, time: int, stack: int = -1, group: Hashable = None
    ) -> None:
        """Add the free of a block of `size` bytes (0: the requested size)."""
        key = self._key(size, name, group)
        if not self._live.get(key) and key in self._named:
            self.n_lost += 1
            self.alloc(size, name, time=time)
        elif not self._live.get(key):
            address = self._unused() if name is None else name
            if name is not None:
                self._named.add(key)
            self._before.append((Action.ALLOC, address, size, 0, time, -1))
            self._live.setdefault(key, []).append((address, size, 0))
        self._end(key, time, stack)

    def request_free(self, name: int, *, time: int, stack: int = -1) -> bool:
        """Add a free_requested; return False if the block is unknown."""
        held = self._live.get((name,))
        if not held:
            return False
        address, size, stream = held[-1]
        self._rows.append((Action.FREE_REQUESTED, address, size, stream, time, stack))
        return True

    def complete_free(self, name: int, *, time: int, stack: int = -1) -> bool:
        """Add a free_completed; return False if the block is unknown."""
        held = self._live.get((name,))
        if not held:
            return False
        address, size, stream = held.pop()
        self._rows.append((Action.FREE_COMPLETED, address, size, stream, time, stack))
        return True

    def move(self, size: int, group: Hashable, other: Hashable) -> None:
        """Move a block without a name from one group to another."""
        held = self._live.get(self._key(size, None, group))
        if held:
            self._live.setdefault(self._key(size, None, other), []).append(held.pop())

    def hold(self, size: int, stack: int) -> None:
        """Add `size` bytes that existed before the first row and are never freed.

        The sizes of the blocks (whole 2 MiB pages, and small blocks for the rest) are chosen so
        that the allocator adds no slack.
        """
        left = size % _PAGE
        for piece in (size - left, min(left, _SMALL), max(left - _SMALL, 0)):
            if piece:
                self._before.append(
                    (Action.ALLOC, self._unused(), piece, 0, self._first_time(), stack)
                )

    def trace(
        self, device: int, frame_table: FrameTable, *, has_times: bool, before: int = -1
    ) -> Trace:
        """Return the trace.

        before: stack number of blocks that existed before the first row.
        """
        start = self._first_time()
        stacks = ((*row[:4], start, before if row[5] < 0 else row[5]) for row in self._before)
        rows = [*sorted(stacks, key=lambda row: row[1]), *self._rows]
        action, addr, size, stream, time, frames = zip(*rows, strict=True) if rows else ((),) * 6
        none = np.full(len(rows), -1, dtype=np.int32)
        return Trace(
            device=device,
            action=np.array(action, dtype=np.uint8),
            addr=np.array(addr, dtype=np.uint64),
            size=np.array(size, dtype=np.int64),
            stream=np.array(stream, dtype=np.uint64),
            frames=np.array(frames, dtype=np.int32),
            pool_id=none,
            time_us=np.array(time, dtype=np.int64) if has_times else None,
            frame_table=frame_table,
        )

    def _first_time(self) -> int:
        return self._rows[0][4] if self._rows else 0

    def _key(self, size: int, name: int | None, group: Hashable) -> Hashable:
        return (name,) if name is not None else (size, group)

    def _end(self, key: Hashable, time: int, stack: int) -> None:
        address, size, stream = self._live[key].pop()
        self._rows.append((Action.FREE_REQUESTED, address, size, stream, time, stack))
        self._rows.append((Action.FREE_COMPLETED, address, size, stream, time, stack))

    def _unused(self) -> int:
        """Return an unused address, counted down from the highest, for a block without a name."""
        self._next_name += 1
        return UINT64_MAX + 1 - _UNKNOWN_STEP * self._next_name
