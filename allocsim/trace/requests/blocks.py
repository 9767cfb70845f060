"""Requests and frees in the order of a file, as the columns of a trace.

Rule: every free is of a block that was requested before it.  A free of a block that the file never
shows requested says that it was there before: its request is put in front of all others.  Where
frees name no block they take the last requested of their size that is still in use.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from allocsim.trace.action import Action
from allocsim.trace.fields import UINT64_MAX
from allocsim.trace.frames import FrameTable
from allocsim.trace.trace import Trace

__all__ = ["Blocks"]

_Row = tuple[int, int, int, int, int, int]
"""(action, address, bytes, stream, time, stack)"""

_UNKNOWN_STEP = 512
_PAGE = 2 << 20
"""What the driver's memory is asked for in multiples of, large requests."""
_SMALL = 1 << 20
"""The largest request that any remainder is split off from."""


class Blocks:
    """The blocks of one device, as the rows of a file come in."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._before: list[_Row] = []
        self._live: dict[Hashable, list[tuple[int, int, int]]] = {}
        self._named: set[Hashable] = set()
        self._next_name = 0
        self.n_lost = 0
        """Frees that the file does not show, because their address was requested anew, and
        requests, because it was freed again."""

    @property
    def n_before(self) -> int:
        """Blocks that were in use before the first row."""
        return len(self._before)

    @property
    def bytes_before(self) -> int:
        """Their bytes."""
        return sum(row[2] for row in self._before)

    @property
    def n_requests(self) -> int:
        """The requests of the file itself."""
        return sum(row[0] == Action.ALLOC for row in self._rows)

    def alloc(
        self, size: int, name: int | None, *, time: int, stack: int = -1, stream: int = 0,
        group: Hashable = None,
    ) -> None:  # fmt: skip
        """A request.  name: of its block, an address mostly; None where the file names none.

        group: what else frees tell of a block that has no name.
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
        """A free of a block of `size` bytes (0: of as many as were requested)."""
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
        """A free that completes later; False if the block is not known."""
        held = self._live.get((name,))
        if not held:
            return False
        address, size, stream = held[-1]
        self._rows.append((Action.FREE_REQUESTED, address, size, stream, time, stack))
        return True

    def complete_free(self, name: int, *, time: int, stack: int = -1) -> bool:
        """The completion of a free that was requested; False if the block is not known."""
        held = self._live.get((name,))
        if not held:
            return False
        address, size, stream = held.pop()
        self._rows.append((Action.FREE_COMPLETED, address, size, stream, time, stack))
        return True

    def move(self, size: int, group: Hashable, other: Hashable) -> None:
        """A block without a name of one group is of another from here on."""
        held = self._live.get(self._key(size, None, group))
        if held:
            self._live.setdefault(self._key(size, None, other), []).append(held.pop())

    def hold(self, size: int, stack: int) -> None:
        """So many bytes more that were there before the first row, and are never freed.

        In blocks that no allocator leaves larger than they were asked for: whole pages, and what is
        left of one as small ones.
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
        """All of it as a trace.

        before: the stack of blocks that were there before the first row.
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
        """An address that no row names, for a block that has none: from the top down."""
        self._next_name += 1
        return UINT64_MAX + 1 - _UNKNOWN_STEP * self._next_name
