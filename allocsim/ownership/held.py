"""Blocks that are allocated at one moment, and their owners.

Their sizes add up exactly to the allocated bytes.  Each block has one name of every kind; a block
without a stack is named "no stack recorded".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import distinct
from allocsim.ownership.blocks import Blocks, blocks_of, blocks_of_state
from allocsim.ownership.rules import RULES, UNKNOWN, rules_of
from allocsim.ownership.scene import Scene, scene_of
from allocsim.ownership.stacks import kinds_of
from allocsim.ownership.whose import Whose, pool_name, stream_name, whose_of
from allocsim.recording import Trace
from allocsim.simulation import Timeline
from allocsim.state import SegmentState

__all__ = ["BY", "Held", "held_at", "scene_of_run", "scene_of_state"]

BY = ("line", "stack", "module", "category", "stream", "pool")
"""Kinds of owner names."""

_MODULES = 3
_STACK = 8


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Allocated blocks of a moment, in order of allocation.

    rows: indices into `blocks`.
    whose: origin of each block.
    rules: index in `RULES` of the rule that gives the category of each block, -1 for none.
    """

    blocks: Blocks
    rows: NDArray[np.intp]
    whose: Sequence[Whose]
    rules: Sequence[int]
    _lines: dict[Whose, str] = field(default_factory=dict, init=False, repr=False)
    _parts: dict[Whose, str] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> list[int]:
        """Allocated bytes of each block."""
        found: list[int] = self.blocks.size[self.rows].tolist()
        return found

    def category(self, index: int) -> str:
        """Return the category of the block at `index`."""
        rule = self.rules[index]
        return RULES[rule].category if rule >= 0 else UNKNOWN

    def reason(self, index: int) -> str:
        """Return the reason for the category of the block at `index`."""
        rule = self.rules[index]
        return RULES[rule].reason if rule >= 0 else "no rule applies"

    def line(self, index: int) -> str:
        """Return the line of the user's program that requested the block at `index`."""
        whose = self.whose[index]
        if whose not in self._lines:
            self._lines[whose] = whose.line()
        return self._lines[whose]

    def part(self, index: int) -> str:
        """Return the part of the model that requested the block at `index`."""
        whose = self.whose[index]
        if whose not in self._parts:
            self._parts[whose] = whose.module(_MODULES)
        return self._parts[whose]

    def name(self, by: str, index: int, frames: int | None = None) -> str:
        """Return the owner of the block at `index`, as a name of kind `by` (see `BY`).

        frames: frames in the name; None for 1 (line), 8 (stack) or 3 (module).
        """
        whose = self.whose[index]
        if by == "line":
            return self.line(index) if frames in (None, 1) else whose.line(frames or 1)
        if by == "module":
            return self.part(index) if frames in (None, _MODULES) else whose.module(frames or 1)
        if by == "stack":
            return whose.whole(frames or _STACK)
        if by == "category":
            return self.category(index)
        namer = stream_name if by == "stream" else pool_name
        return namer(self.blocks, int(self.rows[index]))


def scene_of_run(trace: Trace, start: tuple[SegmentState, ...], timeline: Timeline) -> Scene:
    """Return the scene of a baseline replay.

    start: segments before the first entry.
    timeline: timeline of the replay.
    """
    return _scene(trace, blocks_of(trace, start, timeline), is_state_only=False)


def scene_of_state(trace: Trace) -> Scene:
    """Return the scene of a recording without entries."""
    return _scene(trace, blocks_of_state(trace), is_state_only=True)


def _scene(trace: Trace, blocks: Blocks, *, is_state_only: bool) -> Scene:
    kinds = kinds_of(trace.frame_table, distinct(blocks.stack).tolist())
    return scene_of(blocks, kinds, is_state_only=is_state_only, marks=trace.marks)


def held_at(scene: Scene, trace: Trace, entry: int, since: int = -1) -> Held:
    """Return the blocks allocated after `entry`.

    entry: -1 for the state of a recording without entries.
    since: only blocks requested at this entry or later; -1 for all.
    """
    rows = scene.blocks.in_use(entry)
    rows = rows[scene.blocks.born[rows] >= since]
    rules = rules_of(scene)
    kept = np.array([rule.category == "activations kept for backward" for rule in RULES])
    whose = whose_of(scene, rows, trace.frame_table, np.append(kept, False)[rules])
    return Held(scene.blocks, rows, whose, rules[rows].tolist())
