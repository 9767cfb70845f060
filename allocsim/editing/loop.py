"""Training loop of a recorded program, found in the stacks of its requests and frees.

The loop is the innermost function whose frame is in every stack of a training step.  A training
step ends where the line of that frame goes back, or where the frame ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from allocsim.recording import Frame, FrameTable, Trace

_Function = tuple[str, str]
"""(file name, name of the function)"""


UNKNOWN, OUTSIDE = -2, -1
"""Line of a stack of another thread, and of a stack that does not contain the loop."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Function that runs the training steps.

    functions: functions from the outermost to the loop, as (file name, name).
    lines: line number at which the loop is in each stack, by stack number; `UNKNOWN` without a
        stack, `OUTSIDE` if the stack does not contain the loop.
    """

    functions: tuple[_Function, ...]
    lines: tuple[int, ...]

    def line_at(self, trace: Trace, entry: int) -> int:
        """Return the line number at which the loop is at `entry`, or `UNKNOWN` or `OUTSIDE`."""
        stack = int(trace.frames[entry])
        return self.lines[stack] if stack >= 0 else UNKNOWN

    def length_of_step(self, trace: Trace, entries: Sequence[int]) -> int | None:
        """Return how many of `entries` are in the same training step as the first one.

        entries: entry of the last request that certainly belongs to the step, then later entries.
        Returns None if the stacks do not show the end of the step.
        """
        before = 0
        for number, entry in enumerate(entries):
            line = self.line_at(trace, entry)
            if line == UNKNOWN:
                continue
            if line < before:
                return number
            before = line
        return None

    def first_inside(self, trace: Trace, entries: Sequence[int]) -> int:
        """Return the index of the first of `entries` whose stack contains the loop; 0 if none."""
        lines = (self.line_at(trace, entry) for entry in entries)
        return next((number for number, line in enumerate(lines) if line >= 0), 0)


def loop_of(trace: Trace, entries: Sequence[int]) -> Loop | None:
    """Return the training loop; None if the stacks of `entries` have no common function.

    entries: requests and frees of one training step.
    """
    table = trace.frame_table
    stacks = {int(trace.frames[entry]) for entry in entries}
    paths = [path for stack in sorted(stacks) if (path := _functions_of(_path(table, stack)))]
    if not paths:
        return None
    # Other threads begin with another function, and have fewer stacks than the program's.
    root = Counter(path[0] for path in paths).most_common(1)[0][0]
    common = [path for path in paths if path[0] == root]
    functions = tuple(
        names[0]
        for names in takewhile(lambda names: len(set(names)) == 1, zip(*common))  # noqa: B905
    )
    return Loop(functions, tuple(_line(table, stack, functions) for stack in range(len(table))))


def _path(table: FrameTable, stack: int) -> list[Frame]:
    """Return the Python frames of a stack, outermost first."""
    return [frame for frame in reversed(table.stack(stack)) if frame.filename.endswith(".py")]


def _functions_of(path: list[Frame]) -> list[_Function]:
    return [(frame.filename, frame.name) for frame in path]


def _line(table: FrameTable, stack: int, functions: tuple[_Function, ...]) -> int:
    path = _path(table, stack)
    own = _functions_of(path)
    if not own or own[0] != functions[0]:
        return UNKNOWN
    is_inside = tuple(own[: len(functions)]) == functions
    return path[len(functions) - 1].line if is_inside else OUTSIDE
