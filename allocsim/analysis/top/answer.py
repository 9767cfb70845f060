"""Owners of a device's memory at one moment, with the steps and phases of the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocsim._repr import Shown
from allocsim.ownership import (
    CATEGORIES,
    UNKNOWN,
    Moment,
    Phase,
    Scene,
    categories_of,
)
from allocsim.recording import Frame
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.editing import Saving

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Training steps of a recording, and their phases such as "backward".

    A step or phase lasts until the next one begins.
    step_starts: first entry of each training step.
    step_numbers: number of each training step as marked by the program, or else counted from 1.
    phase_starts: first entry of each occurrence of a phase.
    phase: for each item of `phase_starts`, the index in `phases` of the phase that begins there.
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
    """Owner, such as a line of code, and the memory that it holds.

    category: category, such as "gradients", of most of the bytes.
    largest_bytes: size of the largest block.
    categories: bytes of each category, largest first.
    where: line that holds most of the bytes; if the owner is a category, the modules of the model
        that hold most of the bytes.
    reason: if the owner is a category, the reason why the blocks have this category; else "".
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
    """Owners of one device's memory at a moment.

    by: kind of owner: "line", "stack", "module", "category", "stream" or "pool".
    pending_bytes, pending_blocks: freed memory that waits for other streams; it has no owner.
    rows: owners, largest first.
    categories: bytes of each category, largest first.
    holdings: the same memory, grouped by stack and category together.
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
    """Owners of memory at one moment, of several kinds, and the steps and phases of the run.

    tops: one result for each requested kind of owner, in the requested order.
    course: training steps and phases of the run.
    scene: all blocks of the run, each with the phase that requested it.
    """

    tops: tuple[Top, ...]
    course: Course
    scene: Scene

    def categories_of(self, born: _Column, address: NDArray[np.uint64]) -> _Column:
        """Return, for each of the given blocks, the index of its category in `CATEGORIES`.

        born: entry that allocated each block; -1 if the block is older than the recording.
        address: address of each block; it identifies the blocks with `born` -1.
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
