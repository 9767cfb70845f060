"""Requests, frees and other calls of a recorded program, divided into its training steps.

The function with the training loop is found in the stacks: it is the innermost function whose frame
is in every stack of a training step.  A training step ends where the line number in this frame
decreases, or where the function returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from allocsim.editing.reorder import FREES, reorder
from allocsim.errors import ConfigError
from allocsim.metrics import period_starts
from allocsim.ownership import scene_of_run
from allocsim.recording import Frame, FrameTable, Trace
from allocsim.replaying import Prepared
from allocsim.simulation import DeviceRun, Planned, StepKind, Steps, joined

_Function = tuple[str, str]
"""Function of the program, as (file name, function name)."""


UNKNOWN, OUTSIDE = -2, -1
"""Values in `Loop.lines`: for a stack of another thread, and for a stack outside the function."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Function that contains the training loop.

    functions: chain of calls from the outermost function to this function.
    lines: for each stack of the recording, the line number in this function; `UNKNOWN` for a stack
        of another thread, `OUTSIDE` for a stack without the function.
    """

    functions: tuple[_Function, ...]
    lines: tuple[int, ...]

    def line_at(self, trace: Trace, entry: int) -> int:
        stack = int(trace.frames[entry])
        return self.lines[stack] if stack >= 0 else UNKNOWN

    def length_of_step(self, trace: Trace, entries: Sequence[int]) -> int | None:
        """Return the number of `entries` before the next training step; None if none begins.

        entries: indices of history entries, from the beginning of a training step.
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
        """Return the index in `entries` of the first entry whose stack has this function, or 0."""
        lines = (self.line_at(trace, entry) for entry in entries)
        return next((number for number, line in enumerate(lines) if line >= 0), 0)


def loop_of(trace: Trace, entries: Sequence[int]) -> Loop | None:
    """Return the function that contains the training loop; None if it is not found.

    entries: entries of one training step; their stacks must have a common function.
    """
    table = trace.frame_table
    stacks = {int(trace.frames[entry]) for entry in entries}
    paths = [path for stack in sorted(stacks) if (path := _functions_of(_path(table, stack)))]
    if not paths:
        return None
    # Stacks of other threads begin with another function, and are fewer than the program's stacks.
    root = Counter(path[0] for path in paths).most_common(1)[0][0]
    common = [path for path in paths if path[0] == root]
    functions = tuple(
        names[0]
        for names in takewhile(lambda names: len(set(names)) == 1, zip(*common))  # noqa: B905
    )
    return Loop(functions, tuple(_line_in(table, stack, functions) for stack in range(len(table))))


def _path(table: FrameTable, stack: int) -> list[Frame]:
    return [frame for frame in reversed(table.stack(stack)) if frame.filename.endswith(".py")]


def _functions_of(path: list[Frame]) -> list[_Function]:
    return [(frame.filename, frame.name) for frame in path]


def _line_in(table: FrameTable, stack: int, functions: tuple[_Function, ...]) -> int:
    path = _path(table, stack)
    own = _functions_of(path)
    if not own or own[0] != functions[0]:
        return UNKNOWN
    is_inside = tuple(own[: len(functions)]) == functions
    return path[len(functions) - 1].line if is_inside else OUTSIDE


PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Requests, frees and other calls of a recorded program, with its training steps.

    steps: plan steps, which are the calls that a replay makes, in order.
    starts: index of the first plan step of each training step, ascending.
    numbers: number of each training step, as used in the text of an edit.
    phases: dictionary from "forward", "backward" and "optimizer" to the history entries at which
        the phase begins: the first request of each occurrence.
    frames: index of the stack of each entry of the recording; -1 without a stack.
    loop: function that contains the training loop; None if unknown.
    """

    steps: Steps
    starts: tuple[int, ...]
    numbers: tuple[int, ...]
    phases: Mapping[str, frozenset[int]]
    frames: NDArray[np.int32]
    loop: Loop | None = None

    def with_calls(self, places: Sequence[int]) -> Program:
        """Return the program with a call of empty_cache added before some allocator calls.

        places: indices of these calls in `steps`.
        """
        entries = np.append(self.steps.entry, self.steps.entry[-1:])[list(places)].tolist()
        calls: list[tuple[int, list[Planned]]] = [
            (at, [(int(StepKind.EMPTY_CACHE), entry, 0, 0, 0)])
            for at, entry in sorted(zip(places, entries, strict=True))
        ]
        moved = np.searchsorted(sorted(places), self.starts, side="right") + self.starts
        return replace(self, steps=joined(self.steps, calls), starts=tuple(moved.tolist()))

    def beginning_with(self, planned: Sequence[Planned]) -> Program:
        starts = tuple(start + len(planned) for start in self.starts)
        return replace(self, steps=joined(self.steps, [(0, planned)]), starts=starts)

    def reordered(self, order: Sequence[int]) -> Program:
        """Return the program with its training steps in another order, repeated or left out.

        order: indices in `starts` of the training steps to run, in their new order.
        """
        stacks = np.where(
            self.steps.kind == StepKind.EMPTY_CACHE, -1, self.frames[self.steps.entry]
        )
        steps, starts = reorder(self.steps, self.starts, order, stacks.tolist())
        numbers = tuple(self.numbers[each] for each in order)
        return replace(self, steps=steps, starts=starts, numbers=numbers)

    def position_of(self, number: int) -> int:
        if number not in self.numbers:
            self._refuse_without_steps()
            shown = f"{min(self.numbers)} to {max(self.numbers)}"
            raise ConfigError(f"training step {number} is not recorded; expected one of {shown}")
        return self.numbers.index(number)

    def ends(self) -> list[int]:
        """Return the index of the allocator call after the end of each training step."""
        self._refuse_without_steps()
        return [*self.starts[1:], len(self.steps)]

    def _refuse_without_steps(self) -> None:
        if not self.starts:
            raise ConfigError(
                "the recording shows no training steps; expected stacks or marks of a training loop"
            )

    def calls(self) -> list[int]:
        places: list[int] = np.flatnonzero(self.steps.kind == StepKind.EMPTY_CACHE).tolist()
        return places

    def begins_of(self, phase: str) -> list[int]:
        """Return the indices of the allocator calls where a phase, such as "backward", begins.

        Each is the first request of an occurrence of the phase.  Raises ConfigError if the
        recording does not show the phase.
        """
        firsts = np.array(sorted(self.phases[phase]), dtype=np.int64)
        found = (self.steps.kind == StepKind.ALLOC) & np.isin(self.steps.entry, firsts)
        if not found.any():
            raise ConfigError(
                f"the recording shows no {phase} phase; expected stacks or marks of a training loop"
            )
        places: list[int] = np.flatnonzero(found).tolist()
        return places

    def peaks(self) -> list[int]:
        size, live, now = self.steps.size.tolist(), {}, 0
        peaks = [0] * len(self.starts)
        section, ends = -1, [*self.starts, len(self.steps)]
        for index, (kind, addr) in enumerate(
            zip(self.steps.kind.tolist(), self.steps.addr.tolist(), strict=True)
        ):
            while section + 1 < len(self.starts) and index >= ends[section + 1]:
                section += 1
            if kind == StepKind.ALLOC:
                live[addr] = size[index]
                now += size[index]
            elif kind in FREES:
                now -= live.pop(addr, 0)
            if section >= 0:
                peaks[section] = max(peaks[section], now)
        return peaks


def program_of(prepared: Prepared, baseline: DeviceRun) -> Program:
    """Return the recorded program of a device, divided into training steps.

    The program may have marked its training steps.  If not, they are found from the stacks, and
    without stacks from repeated requests.

    baseline: replay of the device under the recorded settings.
    """
    steps = prepared.free_plan.steps
    scene = scene_of_run(prepared.trace, prepared.start, baseline.timeline)
    firsts, numbers = scene.step_starts, scene.step_numbers
    if not len(firsts):
        firsts = period_starts(prepared)
        numbers = np.arange(1, len(firsts) + 1)
    loop = None
    if len(scene.marked_starts):
        starts: list[int] = np.searchsorted(steps.entry, firsts).tolist()
    else:
        starts = _first_requests(steps, firsts)
        if len(starts) > 2:
            # The second training step is used, since the first may include creating the model.
            loop = loop_of(prepared.trace, steps.entry[starts[1] : starts[2]].tolist())
    if loop is not None:
        starts = _by_loop(steps, prepared.trace, loop, starts)
    spans = (scene.forwards, scene.backwards, scene.optimizers)
    return Program(
        steps=steps,
        starts=tuple(starts),
        numbers=tuple(numbers.tolist()),
        phases={
            phase: frozenset(span.first.tolist()) for phase, span in zip(PHASES, spans, strict=True)
        },
        frames=prepared.trace.frames,
        loop=loop,
    )


def _first_requests(steps: Steps, firsts: NDArray[np.int64]) -> list[int]:
    requests = np.flatnonzero(steps.kind == StepKind.ALLOC)
    at = np.searchsorted(steps.entry[requests], firsts)
    found: list[int] = np.append(requests, len(steps))[at].tolist()
    return found


def _by_loop(steps: Steps, trace: Trace, loop: Loop, starts: list[int]) -> list[int]:
    # `starts` are estimates: the requests that probably begin the training steps. Frees before such
    # a request may belong to the same step, and requests after it to the previous step.
    requests = np.flatnonzero(steps.kind == StepKind.ALLOC)
    found = [loop.first_inside(trace, steps.entry[starts[0] :].tolist()) + starts[0]]
    for start, end in zip(starts[1:], [*starts[2:], len(steps)], strict=True):
        last = int(requests[np.searchsorted(requests, start) - 1])
        length = loop.length_of_step(trace, steps.entry[last:end].tolist())
        found.append(start if length is None else last + length)
    return found
