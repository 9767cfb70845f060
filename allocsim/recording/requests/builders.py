"""Conversion of requests and frees to the columns of a trace, and of recorded calls to stacks.

The readers of files without segments, such as traces of PyTorch's profiler, use this module.  If a
file frees a block that it never requests, a request for it is inserted at the beginning.  If a free
does not identify its block, it frees the most recently requested live block of its size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from allocsim.recording.fields import UINT64_MAX
from allocsim.recording.frames import Frame, FrameInterner, FrameTable
from allocsim.recording.trace import Action, Trace

_Row = tuple[int, int, int, int, int, int]
"""Entry to write: (action code, address, bytes, stream, time in microseconds, stack index)."""

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
        """Number of missing requests and frees: a free is missing between two requests for the same
        block, and a request between two frees of it."""

    @property
    def n_before(self) -> int:
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
        time: time in microseconds.
        stack: stack index; -1 without a stack.
        group: any value, such as the category of the block.  A free without a name frees the newest
            live block of the same size and group.
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
        """Add a free of a block; other parameters are those of `alloc`.

        size: bytes of the block; 0 if unknown, which requires a name.
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
        """Add a free_requested entry and return True; return False if the block is not live."""
        held = self._live.get((name,))
        if not held:
            return False
        address, size, stream = held[-1]
        self._rows.append((Action.FREE_REQUESTED, address, size, stream, time, stack))
        return True

    def complete_free(self, name: int, *, time: int, stack: int = -1) -> bool:
        """Add a free_completed entry and return True; return False if the block is not live."""
        held = self._live.get((name,))
        if not held:
            return False
        address, size, stream = held.pop()
        self._rows.append((Action.FREE_COMPLETED, address, size, stream, time, stack))
        return True

    def change_group(self, size: int, group: Hashable, other: Hashable) -> None:
        """Move the newest live block of a group to another group.

        size: bytes of the block, which must have no name.
        group, other: old and new group, as given to `alloc`.
        """
        held = self._live.get(self._key(size, None, group))
        if held:
            self._live.setdefault(self._key(size, None, other), []).append(held.pop())

    def add_older_blocks(self, size: int, stack: int) -> None:
        """Add blocks that were allocated before the file begins and are never freed.

        size: bytes of these blocks together.
        stack: stack index for these blocks; -1 without a stack.
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
        """Return the trace of the added requests and frees.

        device: index of the device.
        frame_table: frames of the stacks that the entries refer to.
        has_times: True if the times of entries are known.
        before: stack index for blocks from before the file begins that have no stack; -1 for none.
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


_CALLS = ("python_function", "cpu_op", "Operator")
_PYTHON = re.compile(r"(.{1,1000}?)\((\d{1,9})\): (.*)", re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MOST_FRAMES = 200

_Thread = tuple[str, str]
_Call = tuple[float, float, str, str]
"""Call: (begin, end, name, stack of its callers); times are in microseconds.  The stack is a text
that only old traces store, else ""."""


class CallStacks:
    """Calls of each thread in a profiler's trace, from which the stack at any time is derived."""

    def __init__(self) -> None:
        self._calls: dict[_Thread, list[_Call]] = {}
        self._numbers: dict[str, int] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Add an event of the trace, if it is the call of a Python function or operator."""
        name, begin, lasts = event.get("name"), event.get("ts"), event.get("dur")
        if event.get("cat") not in _CALLS or not isinstance(name, str):
            return
        if not isinstance(begin, int | float) or not isinstance(lasts, int | float):
            return
        try:
            begin, end = float(begin), float(begin) + float(lasts)
        except OverflowError:
            return
        if math.isfinite(begin) and end >= begin:
            thread = str(event.get("pid", ""))[:40], str(event.get("tid", ""))[:40]
            args = event.get("args")
            beside = args.get("Call stack") if isinstance(args, dict) else None
            call = (begin, end, name, beside if isinstance(beside, str) else "")
            self._calls.setdefault(thread, []).append(call)

    def stacks(
        self, moments: Sequence[tuple[_Thread, float]], interner: FrameInterner
    ) -> list[int]:
        """Return the stack index at each moment (thread, microseconds); -1 if no call was running.

        interner: table to which the stacks are added.
        """
        found = [-1] * len(moments)
        by_thread: dict[_Thread, list[int]] = {}
        for number, (thread, _) in enumerate(moments):
            by_thread.setdefault(thread, []).append(number)
        for thread, numbers in by_thread.items():
            calls = sorted(self._calls.get(thread, ()), key=lambda call: (call[0], -call[1]))
            numbers.sort(key=lambda number: moments[number][1])
            around: list[_Call] = []
            at = 0
            for number in numbers:
                moment = moments[number][1]
                while at < len(calls) and calls[at][0] <= moment:
                    while around and around[-1][1] <= calls[at][0]:
                        around.pop()
                    around.append(calls[at])
                    at += 1
                while around and around[-1][1] < moment:
                    around.pop()
                found[number] = self._stack(around, interner)
        return found

    def _stack(self, around: list[_Call], interner: FrameInterner) -> int:
        frames: list[int] = []
        for _, _, name, beside in reversed(around[-_MOST_FRAMES:]):
            frames.append(self._frame(name, interner))
            if beside:  # the whole stack is stored, including outer calls
                frames += [self._frame(line, interner) for line in beside.split(";")]
                break
        return interner.stack(frames[:_MOST_FRAMES])

    def _frame(self, name: str, interner: FrameInterner) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = interner.frame(_frame_of(name))
        return number


def _frame_of(name: str) -> Frame:
    python = _PYTHON.fullmatch(name)
    if python is None:
        return Frame("", _ADDRESS.sub("", name[:200]), 0)
    return Frame(python[1], python[3][:200], int(python[2]))
