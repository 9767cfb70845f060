"""Reconstruct call stacks from the calls in a profiler trace.

The trace has begin and duration of each call.  The stack of a thread at a moment consists of the
calls that had begun and not ended, innermost first.  A call of an operator has a name, and neither
file nor line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from allocsim.recording.frames import Frame, FrameInterner

_CALLS = ("python_function", "cpu_op", "Operator")
_PYTHON = re.compile(r"(.{1,1000}?)\((\d{1,9})\): (.*)", re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MOST_FRAMES = 200

_Thread = tuple[str, str]
_Call = tuple[float, float, str, str]
"""(begin and end in microseconds, name, outer call stack that old traces store; else "")"""


class CallStacks:
    """Calls of a trace, by thread."""

    def __init__(self) -> None:
        self._calls: dict[_Thread, list[_Call]] = {}
        self._numbers: dict[str, int] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Add an event of the trace if it is a call of a Python function or operator."""
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
        """Return the stack number at each moment; -1 if no call was running.

        moments: pairs of thread and time in microseconds.
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
            if beside:  # it has the whole stack, including the outer calls
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
