"""Convert requests and frees, in file order, to the columns of a trace.

If a file frees a block that it never requested, the block existed before the file began.  Its
request is then inserted before the first request of the file.  If a free does not name its block by
address or id, it frees the most recently requested live block of its size.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from allocsim.recording.fields import UINT64_MAX
from allocsim.recording.frames import FrameTable
from allocsim.recording.trace import Action, Trace

_Row = tuple[int, int, int, int, int, int]
"""(code of the action, address, bytes, stream, time in microseconds, stack number)"""

_UNKNOWN_STEP = 512
_PAGE = 2 << 20
"""Granularity of large segments, in bytes."""
_SMALL = 1 << 20
"""Largest request that is served from the small pool, in bytes."""


class RequestColumns:
    """Builder of a trace from the requests and frees of one device, in file order."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._before: list[_Row] = []
        self._live: dict[Hashable, list[tuple[int, int, int]]] = {}
        self._named: set[Hashable] = set()
        self._next_name = 0
        self.n_lost = 0
        """Number of missing rows.  A free is missing before the second of two requests of one
        address, and a request before the second of two frees."""

    @property
    def n_before(self) -> int:
        """Number of blocks that existed before the file began."""
        return len(self._before)

    @property
    def bytes_before(self) -> int:
        return sum(row[2] for row in self._before)

    @property
    def n_requests(self) -> int:
        return sum(row[0] == Action.ALLOC for row in self._rows)

    def alloc(
        self, size: int, name: int | None, *, time: int, stack: int = -1, stream: int = 0,
        group: Hashable = None,
    ) -> None:  # fmt: skip
        """Add a request of `size` bytes.

        name: address or id of the block; None if the file has neither.
        time: microseconds.
        stack: stack number; -1 without a stack.
        group: value, such as a category.  A free without a name frees a block of the same size and
            group.
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
        """Add a free; the parameters are those of `alloc`.

        size: bytes of the block; 0 if unknown, which is allowed only for a block with a name.
        """
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
        """Add a free_requested; return False without a change if the block was not requested."""
        held = self._live.get((name,))
        if not held:
            return False
        address, size, stream = held[-1]
        self._rows.append((Action.FREE_REQUESTED, address, size, stream, time, stack))
        return True

    def complete_free(self, name: int, *, time: int, stack: int = -1) -> bool:
        """Add a free_completed; return False without a change if the block was not requested."""
        held = self._live.get((name,))
        if not held:
            return False
        address, size, stream = held.pop()
        self._rows.append((Action.FREE_COMPLETED, address, size, stream, time, stack))
        return True

    def move(self, size: int, group: Hashable, other: Hashable) -> None:
        """Change the group of the newest live block of `size` bytes and no name to `other`."""
        held = self._live.get(self._key(size, None, group))
        if held:
            self._live.setdefault(self._key(size, None, other), []).append(held.pop())

    def hold(self, size: int, stack: int) -> None:
        """Add blocks that existed before the file began and are never freed, `size` bytes together.

        The first is a multiple of 2 MiB and the others have the rest, so that the allocator
        reserves no more memory than necessary.
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
        """Return the trace of the requests and frees.

        frame_table: table to which the stack numbers refer.
        has_times: True if the times are recorded ones.
        before: stack number of the blocks that existed before the file began.
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
        self._next_name += 1
        return UINT64_MAX + 1 - _UNKNOWN_STEP * self._next_name
