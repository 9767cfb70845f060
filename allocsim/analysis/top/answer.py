"""Owners of a device's memory at one moment, with the steps and phases of the program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocsim._repr import Shown
from allocsim.ownership import (
    CATEGORIES,
    NO_STACK,
    UNKNOWN,
    Moment,
    Phase,
    Scene,
    categories_of,
    is_plumbing,
    line_of,
)
from allocsim.recording import Frame
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.editing import Saving

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Training steps and phases of a recording.  Each lasts until the next one begins.

    step_starts, phase_starts: first entry of each step, and of each occurrence of a phase.
    step_numbers: number of each step, as marked by the program; without marks, counted from 1.
    phase: phase that begins at each item of `phase_starts`, as an index into `phases`.
    phases: names of all phases; the first is "", for an unknown phase.
    """

    step_starts: _Column
    step_numbers: _Column
    phase_starts: _Column
    phase: NDArray[np.uint8]
    phases: tuple[str, ...] = tuple("" if p is Phase.UNTOLD else p.text for p in Phase)


def course_of(scene: Scene, n_entries: int) -> Course:
    after = ~scene.is_before
    born, phase = scene.blocks.born[after], scene.phase[after]
    # The phase of an entry is that of its last allocation, as in `Scene.phase_at`.
    last = np.append(np.diff(born) > 0, True)[: len(born)]
    born = np.append(np.int64(-1), born[last])
    phase = np.append(np.uint8(Phase.UNTOLD), phase[last])
    changes = np.append(True, np.diff(phase) != 0)
    starts, kinds = np.maximum(born[changes], 0), phase[changes]
    # If two ranges begin at entry 0, the first is empty.
    seen = np.append(np.diff(starts) > 0, True)
    seen &= starts < n_entries
    steps = scene.step_starts
    reached = steps < n_entries
    numbers = scene.step_numbers[reached]
    return Course(steps[reached], numbers, starts[seen], kinds[seen])


_SHOWN = 10  # number of rows in the table of a notebook


@dataclass(frozen=True, slots=True)
class TopRow:
    """One owner with its memory.

    category: category of most of the bytes.
    where: line that holds most of the bytes; in a grouping by category, the modules of the model
        that hold most of the bytes.
    reason: in a grouping by category, the reason why the blocks have this category; else "".
    """

    owner: str
    category: str
    bytes: int
    blocks: int
    largest_bytes: int
    categories: dict[str, int]
    where: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory of all blocks with the same stack and category.

    frames: Python frames of the stack, innermost first.
    silent: "" if the stack was recorded, else a text such as "no stack recorded".
    """

    frames: tuple[Frame, ...]
    silent: str
    category: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, repr=False)
class Top(Shown):
    """Owners of one device's memory.

    by: grouping: "line", "stack", "module", "category", "stream" or "pool".
    pending_bytes, pending_blocks: freed memory that waits for other streams; it has no owner.
    rows: owners, largest first.
    categories: bytes of each category, largest first.
    holdings: the same memory, grouped by stack and category.
    notes: sentences about what was inferred, not recorded.
    savings: changes of the program that would reduce memory; only at an out-of-memory error.
    """

    path: str
    device: int
    at: Moment
    by: str
    allocated_bytes: int
    blocks: int
    pending_bytes: int
    pending_blocks: int
    rows: tuple[TopRow, ...]
    categories: dict[str, int]
    holdings: tuple[Holding, ...]
    notes: tuple[str, ...]
    savings: tuple[Saving, ...] = ()

    def headline(self) -> str:
        entry = "" if self.at.entry is None else f" (entry {self.at.entry:,})"
        held = f"{format_size(self.allocated_bytes)} in {self.blocks:,} blocks"
        first = f"; {format_size(self.rows[0].bytes)} {self.rows[0].owner}" if self.rows else ""
        return f"device {self.device}, {self.at.what}{entry}: {held}, by {self.by}{first}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for row in self.rows[:_SHOWN]:
            share = row.bytes / max(self.allocated_bytes, 1)
            yield row.owner, f"{format_size(row.bytes)}, {share:.1%}, blocks: {row.blocks:,}"
        rest = self.rows[_SHOWN:]
        if rest:
            yield f"{len(rest):,} more", format_size(sum(row.bytes for row in rest))


@dataclass(frozen=True, slots=True, eq=False)
class StackAnswers:
    """Owners of memory at one moment in several groupings, and the run's steps and phases.

    tops: one result for each requested grouping, in the requested order.
    scene: all blocks of the run, each with its phase.
    """

    tops: tuple[Top, ...]
    course: Course
    scene: Scene

    def categories_of(self, born: _Column, address: NDArray[np.uint64]) -> _Column:
        """Return the category of each block, as an index into `CATEGORIES`.

        born: entry that allocated each block; -1 if it is older than the recording.
        address: address of each block.
        """
        blocks, known = self.scene.blocks, categories_of(self.scene)
        unknown = CATEGORIES.index(UNKNOWN)
        by_entry = np.full(blocks.n_entries, unknown, dtype=np.int64)
        is_new = blocks.born >= 0
        by_entry[blocks.born[is_new]] = known[is_new]
        older = dict(zip(blocks.address[~is_new].tolist(), known[~is_new].tolist(), strict=True))
        found = by_entry[np.maximum(born, 0)]
        for row in np.flatnonzero(born < 0):
            found[row] = older.get(int(address[row]), unknown)
        return found


_LEAST_SHARE = 1 / 400
"""Least share of all memory for which a frame gets its own box; a smaller box is too narrow."""
_MOST_ROWS = 48
_MOSTLY = 0.9  # least share of a frame's memory in one category for which the box has this category


@dataclass(frozen=True, slots=True)
class FlameBox:
    """Box of one frame, or of several small frames together.

    depth: row of the box; 0 for the outermost frames.
    start: left edge in bytes.
    bytes, blocks: memory that the frame and the functions it calls requested.
    category: category of at least 9/10 of the bytes; "" if there is none.
    folded: number of stacks in a box of several frames; 0 for a single frame.
    """

    depth: int
    start: int
    bytes: int
    blocks: int
    name: str
    file: str
    category: str
    folded: int = 0


@dataclass(frozen=True, slots=True)
class FlameGraph:
    """Boxes of a flame graph, row by row.

    bytes: bytes of all memory, the width of the graph.
    least_share: share of all memory below which frames get one box together.
    """

    boxes: tuple[FlameBox, ...]
    bytes: int
    categories: tuple[str, ...]
    least_share: float

    @property
    def rows(self) -> int:
        return max((box.depth + 1 for box in self.boxes), default=0)


_Name = tuple[str, str]  # line and file of a frame
_Stack = tuple[tuple[_Name, ...], Holding]
"""Names of the frames of a stack, outermost first, and the memory that this stack requested."""
_OTHER = ("other", "")


def flame_of(
    top: Top, *, least_share: float = _LEAST_SHARE, most_rows: int = _MOST_ROWS
) -> FlameGraph:
    least = least_share * top.allocated_bytes
    boxes: list[FlameBox] = []
    level = [(0, [(_names(holding), holding) for holding in top.holdings])]
    for depth in range(most_rows):
        deeper = []
        for start, stacks in level:
            at, folded = start, []
            for called in _called(stacks, depth):
                # The box of a folded stack has no callees: these are folded with it.
                if _bytes(called) < least or depth == most_rows - 1:
                    folded += called
                    continue
                boxes.append(_box(depth, at, called, called[0][0][depth]))
                deeper.append((at, called))
                at += _bytes(called)
            if folded:
                boxes.append(_box(depth, at, folded, _OTHER, len({names for names, _ in folded})))
        level = deeper
    return FlameGraph(tuple(boxes), top.allocated_bytes, tuple(top.categories), least_share)


def _names(holding: Holding) -> tuple[_Name, ...]:
    frames = [frame for frame in reversed(holding.frames) if not is_plumbing(frame)]
    names = [(line_of(frame), frame.filename) for frame in frames]
    if holding.silent:
        names.append((holding.silent, ""))
    return tuple(names) or ((NO_STACK, ""),)


def _called(stacks: Sequence[_Stack], depth: int) -> list[list[_Stack]]:
    groups: dict[_Name, list[_Stack]] = {}
    for stack in stacks:
        if len(stack[0]) > depth:
            groups.setdefault(stack[0][depth], []).append(stack)
    return sorted(groups.values(), key=lambda group: (-_bytes(group), group[0][0][depth]))


def _bytes(stacks: Sequence[_Stack]) -> int:
    return sum(holding.bytes for _, holding in stacks)


def _box(
    depth: int, start: int, stacks: Sequence[_Stack], name: _Name, folded: int = 0
) -> FlameBox:
    size = _bytes(stacks)
    found: dict[str, int] = {}
    for _, holding in stacks:
        found[holding.category] = found.get(holding.category, 0) + holding.bytes
    most = max(found, key=lambda category: found[category])
    return FlameBox(
        depth=depth,
        start=start,
        bytes=size,
        blocks=sum(holding.blocks for _, holding in stacks),
        name=name[0],
        file=name[1],
        category=most if found[most] >= _MOSTLY * size else "",
        folded=folded,
    )
