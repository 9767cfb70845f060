"""Blocks that are allocated after one entry of a recording, and their owners.

The sizes of these blocks add up exactly to the allocated bytes.
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

BY = ("line", "stack", "module", "category", "stream", "pool")
"""Ways to name the owner of a block; every block has a name of each kind."""

_MODULES = 3
_STACK = 8


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Allocated blocks after one entry, in order of allocation.

    blocks: all blocks of the device.
    rows: indices in `blocks` of the allocated blocks.
    whose: owner of each allocated block.
    rules: index in `RULES` of the rule that decides the category of each allocated block; -1 if no
        rule applies.
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
        """Bytes of each allocated block."""
        found: list[int] = self.blocks.size[self.rows].tolist()
        return found

    def category(self, index: int) -> str:
        """Return the category of the block at `index`."""
        rule = self.rules[index]
        return RULES[rule].category if rule >= 0 else UNKNOWN

    def reason(self, index: int) -> str:
        """Return the reason for the category of the block at `index`, as a clause."""
        rule = self.rules[index]
        return RULES[rule].reason if rule >= 0 else "no rule applies"

    def line(self, index: int) -> str:
        """Return the user's line that requested the block at `index`."""
        whose = self.whose[index]
        if whose not in self._lines:
            self._lines[whose] = whose.line()
        return self._lines[whose]

    def part(self, index: int) -> str:
        """Return the modules of the model that requested the block at `index`, innermost first."""
        whose = self.whose[index]
        if whose not in self._parts:
            self._parts[whose] = whose.module(_MODULES)
        return self._parts[whose]

    def name(self, by: str, index: int, frames: int | None = None) -> str:
        """Return the name of the owner of the block at `index`.

        by: kind of name, one of `BY`.
        frames: number of frames in the name.  None for the default: 1 for lines, 8 for stacks, 3
            for modules.
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
    """Return the blocks of a recording, each with the phase and kind of code that requested it.

    start: segments before the first entry.
    timeline: allocated bytes after each entry of the baseline replay.
    """
    return _scene(trace, blocks_of(trace, start, timeline), is_state_only=False)


def scene_of_state(trace: Trace) -> Scene:
    """Return the blocks of a recording without entries.

    Each block has the training phase and the kind of code that requested it.
    """
    return _scene(trace, blocks_of_state(trace), is_state_only=True)


def _scene(trace: Trace, blocks: Blocks, *, is_state_only: bool) -> Scene:
    kinds = kinds_of(trace.frame_table, distinct(blocks.stack).tolist())
    return scene_of(blocks, kinds, is_state_only=is_state_only, marks=trace.marks)


def held_at(scene: Scene, trace: Trace, entry: int, since: int = -1) -> Held:
    """Return the blocks that are allocated after `entry`, with their owners.

    entry: entry number; -1 for a recording without entries.
    since: leave out blocks that were requested before this entry; -1 for all blocks.
    """
    rows = scene.blocks.in_use(entry)
    rows = rows[scene.blocks.born[rows] >= since]
    rules = rules_of(scene)
    kept = np.array([rule.category == "activations kept for backward" for rule in RULES])
    whose = whose_of(scene, rows, trace.frame_table, np.append(kept, False)[rules])
    return Held(scene.blocks, rows, whose, rules[rows].tolist())
