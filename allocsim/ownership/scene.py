"""Blocks of a device, with the training phase and the kind of code of each allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.ownership.blocks import Blocks
from allocsim.ownership.stacks import Origin, Phase, StackKind
from allocsim.recording import Mark, MarkKind

_Mask = NDArray[np.bool_]
_Column = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
_MARKED = {
    "setup": Phase.SETUP,
    "forward": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "optimizer": Phase.OPTIMIZER,
}
"""Dictionary from the value of a mark (`recording.Mark`) to the training phase that begins there.

A mark with any other value only ends the previous phase.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Spans of one training phase: sequences of successive allocations that are all in this phase.

    A span of the forward phase, for example, is usually one forward pass.

    first, last: for each span, the entries of its first and last allocation.
    after: for each span, the entry of the first allocation after it; `NEVER` if there is none.
    """

    first: _Column
    last: _Column
    after: _Column

    def __len__(self) -> int:
        return len(self.first)

    def next_first(self, entry: _Column) -> _Column:
        starts = np.append(self.first, NEVER)
        found: _Column = starts[self.of(entry) + 1]
        return found

    def previous_last(self, entry: _Column) -> _Column:
        """Return, for each item of `entry`, the last entry up to it that is in a span.

        The result is -1 for an item before the first span.
        """
        at = self.of(entry)
        found = np.where(at >= 0, np.minimum(np.append(self.last, 0)[at], entry), -1)
        return found.astype(np.int64)

    def of(self, entry: _Column) -> NDArray[np.intp]:
        """Return, for each entry, the index of the last span that begins up to it; -1 if none."""
        if not len(self):
            return np.full(len(entry), -1)
        return np.searchsorted(self.first, entry, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """Blocks of one device, with the training phase and the kind of code that requested each.

    phase: value of `Phase` for each block, inferred from its stack or from marks.
    origin: value of `Origin` (kind of code) for each block, inferred from its stack.
    is_engine_thread: mask of blocks allocated by Python code in autograd's thread.
    is_without_grad: mask of blocks allocated while gradients were disabled.
    is_bare: mask of blocks allocated by autograd itself, or without Python frames.
    is_before: mask of blocks from before the first entry.
    forwards, backwards, optimizers: spans of the forward, backward and optimizer phase.
    last_alloc: entry of the last allocation; -1 if there is none.
    has_lives: True if the recording has entries; without entries lifetimes are unknown.
    marked_starts, marked_numbers: first entry and number of each training step, from marks; empty
        if the recording has no marks for steps.
    rules: cache of the result of `rules_of`; empty before its first call.
    """

    blocks: Blocks
    phase: NDArray[np.uint8]
    origin: NDArray[np.uint8]
    is_engine_thread: _Mask
    is_without_grad: _Mask
    is_bare: _Mask
    is_before: _Mask
    forwards: Spans
    backwards: Spans
    optimizers: Spans
    last_alloc: int
    has_lives: bool
    marked_starts: _Column
    marked_numbers: _Column
    rules: list[_Column] = field(default_factory=list)

    def came_from(self, *origins: Origin) -> _Mask:
        return any_of(self.origin, origins)

    def born_in(self, *phases: Phase) -> _Mask:
        return any_of(self.phase, phases)

    @property
    def outlives_all(self) -> _Mask:
        """Mask of the blocks that are still allocated at the last allocation."""
        return self.blocks.freed > self.last_alloc

    def span_end(self, spans: Spans) -> tuple[_Column, _Column]:
        """Return, for each block, the last entry of its span and the first allocation after it.

        The span of a block is the last of `spans` that begins before the block is allocated.
        """
        at = spans.of(self.blocks.born)
        return np.append(spans.last, -1)[at], np.append(spans.after, NEVER)[at]

    def dies_within(self, spans: Spans) -> _Mask:
        freed = self.blocks.freed
        at = spans.of(freed)
        found: _Mask = (at >= 0) & (freed < np.append(spans.last, -1)[at])
        return found

    def step_at(self, entry: int) -> int:
        """Return the number of the training step that contains `entry`; 0 if no steps are known."""
        if len(self.marked_starts):
            at = int(np.searchsorted(self.marked_starts, entry, side="right")) - 1
            return int(self.marked_numbers[at]) if at >= 0 else 0
        ends = self._step_ends
        if not len(ends):
            return 0
        behind_all = entry > ends[-1] and self.last_alloc == ends[-1]
        return len(ends) if behind_all else int(np.searchsorted(ends, entry, side="left")) + 1

    @property
    def step_starts(self) -> _Column:
        if len(self.marked_starts):
            return self.marked_starts
        ends = self._step_ends
        if not len(ends):
            return ends
        # Entries after the last allocation belong to the last step.
        closed = ends[:-1] if self.last_alloc == ends[-1] else ends
        return np.append(np.int64(0), closed + 1)

    @property
    def step_numbers(self) -> _Column:
        if len(self.marked_numbers):
            return self.marked_numbers
        return np.arange(1, len(self.step_starts) + 1, dtype=np.int64)

    @property
    def _step_ends(self) -> _Column:
        # If several backward passes have one optimizer step in all, each backward pass ends a step.
        ends_steps = len(self.optimizers) > 1 or len(self.backwards) <= 1
        return (self.optimizers if ends_steps and len(self.optimizers) else self.backwards).last

    def phase_at(self, entry: int) -> Phase:
        born = self.blocks.born
        at = int(np.searchsorted(born, entry, side="right")) - 1
        return Phase(int(self.phase[at])) if at >= 0 and born[at] >= 0 else Phase.UNTOLD


def scene_of(
    blocks: Blocks, kinds: dict[int, StackKind], *, is_state_only: bool, marks: Sequence[Mark] = ()
) -> Scene:
    numbers = np.array(sorted(kinds), dtype=np.int64)
    which = np.searchsorted(numbers, blocks.stack) if len(numbers) else np.zeros(0, np.intp)
    table = [kinds[number] for number in numbers.tolist()]
    phase = np.array([kind.phase for kind in table], dtype=np.uint8)[which]
    origin = np.array([kind.origin for kind in table], dtype=np.uint8)[which]
    thread = np.array([kind.is_engine_thread for kind in table], dtype=bool)[which]
    without = np.array([kind.is_without_grad for kind in table], dtype=bool)[which]
    is_before = blocks.born < 0
    marked = {mark.value for mark in marks if mark.kind is MarkKind.PHASE}
    sees_backward = "backward" in marked or bool(
        any_of(phase, (Phase.BACKWARD, Phase.OPTIMIZER)).any()
    )
    is_silent = phase == Phase.UNTOLD
    phase = np.where(is_silent & ~is_before, _marked_phases(marks, blocks.born), phase)
    if sees_backward:
        # Autograd's thread runs no Python, so requests without frames are its own.
        is_engines = is_silent & ~is_before & any_of(phase, (Phase.UNTOLD, Phase.BACKWARD))
        phase = np.where(is_engines, np.uint8(Phase.BACKWARD), phase)
        origin = np.where(is_engines, np.uint8(Origin.ENGINE), origin)
    starts, numbers = _marked_steps(marks)
    after = ~is_before
    born, part = blocks.born[after], phase[after]
    return Scene(
        blocks=blocks,
        phase=phase,
        origin=origin,
        is_engine_thread=thread,
        is_without_grad=without,
        is_bare=is_silent | (origin == Origin.ENGINE),
        is_before=is_before,
        forwards=_spans(born, part == Phase.FORWARD),
        backwards=_spans(born, part == Phase.BACKWARD),
        optimizers=_spans(born, part == Phase.OPTIMIZER),
        last_alloc=int(born[-1]) if len(born) else -1,
        has_lives=not is_state_only,
        marked_starts=starts,
        marked_numbers=numbers,
    )


def _marked_steps(marks: Sequence[Mark]) -> tuple[_Column, _Column]:
    steps = {mark.entry: mark.value for mark in marks if mark.kind is MarkKind.STEP}
    return np.array(list(steps), dtype=np.int64), np.array(list(steps.values()), dtype=np.int64)


def _marked_phases(marks: Sequence[Mark], born: _Column) -> NDArray[np.uint8]:
    edges = [mark for mark in marks if mark.kind in (MarkKind.STEP, MarkKind.PHASE)]
    places = np.array([mark.entry for mark in edges], dtype=np.int64)
    phases = [_MARKED.get(str(mark.value), Phase.UNTOLD) for mark in edges]
    at = np.searchsorted(places, born, side="right")
    return np.array([Phase.UNTOLD, *phases], dtype=np.uint8)[at]


def _spans(born: _Column, is_in: _Mask) -> Spans:
    edges = np.flatnonzero(np.diff(is_in.astype(np.int8), prepend=0, append=0))
    first, end = edges[::2], edges[1::2]
    return Spans(born[first], born[end - 1], np.append(born, NEVER)[end])
