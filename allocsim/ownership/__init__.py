"""Owner and category of each block of a recording, inferred from its stack and lifetime.

An owner is the part of the program that requested a block: a line, a stack, a module of the model,
a stream or a pool.  A category is the purpose of a block, such as "parameters" or "gradients".  At
any entry, the sizes of the blocks in use add up exactly to the allocated bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import distinct
from allocsim.errors import RecordingError
from allocsim.ownership.blocks import Blocks, blocks_of, blocks_of_state, paired, rows_of
from allocsim.ownership.rules import (
    CATEGORIES,
    RULES,
    UNKNOWN,
    CategoryRule,
    categories_of,
    purposes_of,
    rules_of,
)
from allocsim.ownership.scene import Scene, scene_of
from allocsim.ownership.stacks import Phase, is_python, kinds_of
from allocsim.ownership.whose import (
    LINE,
    NO_STACK,
    Whose,
    is_plumbing,
    line_of,
    moved_lines,
    pool_name,
    status_of,
    stream_name,
    whose_of,
)
from allocsim.recording import Action, BlockLives, Trace
from allocsim.simulation import DeviceRun, Timeline
from allocsim.state import SegmentState

__all__ = [
    "BY", "Blocks", "CATEGORIES", "CategoryRule", "Held", "LINE", "Moment", "NO_STACK", "Phase",
    "RULES", "Scene", "UNKNOWN", "Whose", "categories_of", "held_at", "is_plumbing", "is_python",
    "line_of", "moment_of", "moment_of_state", "moved_lines", "paired", "purposes_of", "rows_of",
    "scene_of_run", "scene_of_state", "status_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moment:
    """Moment of a recording for which the blocks in use are listed.

    entry: blocks are listed as they are after this entry; None for a recording without entries.
    what: choice of the moment: "peak", "oom", "end", or "entry" if the user gave the entry.
    step: number of the training step, from 1; 0 if no steps are known.
    phase: training phase, such as "forward"; "" if unknown.
    requested_bytes: bytes of the failed request if `what` is "oom", else None.
    """

    entry: int | None
    what: str
    step: int = 0
    phase: str = ""
    requested_bytes: int | None = None


def moment_of(
    path: str, trace: Trace, device_run: DeviceRun, scene: Scene, at: str | int | None
) -> Moment:
    """Return the moment that the user selected.

    path: name of the recording, for errors.
    device_run: replay under the recorded settings.
    scene: blocks of the recording, from which the training step and phase are inferred.
    at: "peak" of allocated bytes, "oom", "end" or an entry number.  None selects "oom" if the
        recording has an out-of-memory error, else "peak".

    Raises RecordingError if the recording has no such moment.
    """
    ooms = np.flatnonzero(trace.action == Action.OOM)
    last = len(trace) - 1 if device_run.stopped_at is None else device_run.stopped_at
    if at is None:
        at = "oom" if len(ooms) else "peak"
    requested = None
    if at == "oom":
        if not len(ooms):
            raise RecordingError(
                path, "no out-of-memory error is recorded; expected another moment"
            )
        entry = int(ooms[-1])
        requested = int(trace.size[entry])
    elif at == "peak":
        timeline = device_run.timeline
        entry = int(timeline.entry[np.argmax(timeline.allocated)])
    elif at == "end":
        entry = last
    elif not isinstance(at, str) and 0 <= at <= last:
        entry = int(at)
    else:
        raise RecordingError(path, f"there is no entry {at}; expected 0 to {last}")
    phase = scene.phase_at(entry)
    return Moment(
        entry=entry,
        what=at if isinstance(at, str) else "entry",
        step=scene.step_at(entry),
        phase="" if phase is Phase.UNTOLD else phase.text,
        requested_bytes=requested,
    )


def moment_of_state(path: str, at: str | int | None) -> Moment:
    if at not in (None, "end"):
        what = f"holds a state only and no history: there is no {at!r}, only the end"
        raise RecordingError(path, what)
    return Moment(None, "end")


BY = ("line", "stack", "module", "category", "stream", "pool")
"""Kinds of owners by which blocks can be grouped.  Every block has one owner of each kind."""

_MODULES = 3
_STACK = 8


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Blocks in use after one entry, with their owners and categories, in order of allocation.

    blocks: all blocks of the recording.
    rows: indices in `blocks` of the blocks in use.
    whose: owner of each block in use.
    rules: for each block in use, the index in `RULES` of the rule that decides its category; -1 if
        no rule applies.
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
        found: list[int] = self.blocks.size[self.rows].tolist()
        return found

    def category(self, index: int) -> str:
        rule = self.rules[index]
        return RULES[rule].category if rule >= 0 else UNKNOWN

    def reason(self, index: int) -> str:
        rule = self.rules[index]
        return RULES[rule].reason if rule >= 0 else "no rule applies"

    def line(self, index: int) -> str:
        whose = self.whose[index]
        if whose not in self._lines:
            self._lines[whose] = whose.line()
        return self._lines[whose]

    def part(self, index: int) -> str:
        whose = self.whose[index]
        if whose not in self._parts:
            self._parts[whose] = whose.module(_MODULES)
        return self._parts[whose]

    def name(self, by: str, index: int, frames: int | None = None) -> str:
        """Return the name of the owner of one block in use.

        by: kind of owner, an item of `BY`.
        index: index of the block in `rows`.
        frames: largest number of stack frames in the name; None for the default of the kind.
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


def scene_of_run(
    trace: Trace,
    start: tuple[SegmentState, ...],
    timeline: Timeline,
    lives: BlockLives | None = None,
) -> Scene:
    """Return the blocks of a recording, each with the phase and kind of code that requested it.

    start: segments before the first entry.
    timeline: memory during the replay under the recorded settings, which gives sizes of blocks.
    lives: lifetimes of the blocks if known (then `start` must be empty); None to compute them.
    """
    return _scene(trace, blocks_of(trace, start, timeline, lives), is_state_only=False)


def scene_of_state(trace: Trace) -> Scene:
    return _scene(trace, blocks_of_state(trace), is_state_only=True)


def _scene(trace: Trace, blocks: Blocks, *, is_state_only: bool) -> Scene:
    kinds = kinds_of(trace.frame_table, distinct(blocks.stack).tolist())
    return scene_of(blocks, kinds, is_state_only=is_state_only, marks=trace.marks)


def held_at(scene: Scene, trace: Trace, entry: int, since: int = -1) -> Held:
    """Return the blocks that are allocated after `entry`, with their owners.

    since: index of an entry; blocks requested before it are left out.  -1 keeps all blocks.
    """
    rows = scene.blocks.in_use(entry)
    rows = rows[scene.blocks.born[rows] >= since]
    rules = rules_of(scene)
    kept = np.array([rule.category == "activations kept for backward" for rule in RULES])
    whose = whose_of(scene, rows, trace.frame_table, np.append(kept, False)[rules])
    return Held(scene.blocks, rows, whose, rules[rows].tolist())
