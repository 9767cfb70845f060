"""The blocks that are allocated at one moment, and whose each of them is.

Rule: they add up, to the byte, to what was allocated then; each has one name of every kind, "no
stack recorded" where nothing tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import distinct
from allocsim.engine import Timeline
from allocsim.owners.blocks import Blocks, blocks_of, blocks_of_state
from allocsim.owners.rules import RULES, UNKNOWN, rules_of
from allocsim.owners.scene import Scene, scene_of
from allocsim.owners.stacks import kinds_of
from allocsim.owners.whose import Whose, pool_name, stream_name, whose_of
from allocsim.state import SegmentState
from allocsim.trace import Trace

__all__ = ["BY", "Held", "held_at", "scene_of_run", "scene_of_state"]

BY = ("line", "stack", "module", "category", "stream", "pool")
"""What names can be by."""

_MODULES = 3
_STACK = 8


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The blocks of a moment, in the order of their births.

    rows: their numbers among `blocks`.  whose, rules: of each, who asked for it and which of
    `RULES` tells its category, -1 for none.
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
        """Bytes of each, as they count as allocated."""
        found: list[int] = self.blocks.size[self.rows].tolist()
        return found

    def category(self, index: int) -> str:
        """What the block at `index` is for."""
        rule = self.rules[index]
        return RULES[rule].category if rule >= 0 else UNKNOWN

    def reason(self, index: int) -> str:
        """Why the block at `index` is of its category."""
        rule = self.rules[index]
        return RULES[rule].reason if rule >= 0 else "no rule reaches it"

    def line(self, index: int) -> str:
        """The program's own line that asked for the block at `index`."""
        whose = self.whose[index]
        if whose not in self._lines:
            self._lines[whose] = whose.line()
        return self._lines[whose]

    def part(self, index: int) -> str:
        """The part of the model that asked for the block at `index`."""
        whose = self.whose[index]
        if whose not in self._parts:
            self._parts[whose] = whose.module(_MODULES)
        return self._parts[whose]

    def name(self, by: str, index: int, frames: int | None = None) -> str:
        """Whose the block at `index` is, by one of `BY`.

        frames: how many frames tell lines, stacks or modules apart (1, 8, 3).
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
    """What the stacks and lives of a run as recorded tell.

    start: the segments before the first entry.  timeline: of the replay.
    """
    return _scene(trace, blocks_of(trace, start, timeline), is_state_only=False)


def scene_of_state(trace: Trace) -> Scene:
    """What the stacks of a recording that holds a state only tell."""
    return _scene(trace, blocks_of_state(trace), is_state_only=True)


def _scene(trace: Trace, blocks: Blocks, *, is_state_only: bool) -> Scene:
    kinds = kinds_of(trace.frame_table, distinct(blocks.stack).tolist())
    return scene_of(blocks, kinds, is_state_only=is_state_only, marks=trace.marks)


def held_at(scene: Scene, trace: Trace, entry: int, since: int = -1) -> Held:
    """What is allocated after `entry`, -1 for the state of one that holds no entries.

    since: only of what was asked for at that entry or later; -1 for all.
    """
    rows = scene.blocks.in_use(entry)
    rows = rows[scene.blocks.born[rows] >= since]
    rules = rules_of(scene)
    kept = np.array([rule.category == "activations kept for backward" for rule in RULES])
    whose = whose_of(scene, rows, trace.frame_table, np.append(kept, False)[rules])
    return Held(scene.blocks, rows, whose, rules[rows].tolist())
