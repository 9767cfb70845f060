"""The course of a recording: its steps and phases as stretches of entries.

Rule: the stretches are those of `Scene.step_at` and `Scene.phase_at`, entry by entry; they follow
one another without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.owners import Phase, Scene

__all__ = ["Course", "course_of"]

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Steps and phases, each until the next begins.

    step_starts: the first entry of each step, the first step's 0 unless the program marked its
    steps; empty where no steps are seen.  step_numbers: their numbers.
    phase_starts: the first entry of each stretch of one phase; phase: which, as an index into
    `phases`, whose first, "", is that nothing tells.
    """

    step_starts: _Column
    step_numbers: _Column
    phase_starts: _Column
    phase: NDArray[np.uint8]
    phases: tuple[str, ...] = tuple("" if p is Phase.UNTOLD else p.text for p in Phase)

    @property
    def tells_phases(self) -> bool:
        """Whether any stretch is of a phase that is known."""
        return bool((self.phase != Phase.UNTOLD).any())


def course_of(scene: Scene, n_entries: int) -> Course:
    """The course of the first `n_entries` entries of `scene`."""
    after = ~scene.is_before
    born, phase = scene.blocks.born[after], scene.phase[after]
    # Of allocations at one entry the last decides, as in `phase_at`.
    last = np.append(np.diff(born) > 0, True)[: len(born)]
    born = np.append(np.int64(-1), born[last])
    phase = np.append(np.uint8(Phase.UNTOLD), phase[last])
    changes = np.append(True, np.diff(phase) != 0)
    starts, kinds = np.maximum(born[changes], 0), phase[changes]
    # Of two stretches that begin at entry 0 the first is empty.
    seen = np.append(np.diff(starts) > 0, True)
    seen &= starts < n_entries
    steps = scene.step_starts
    reached = steps < n_entries
    numbers = scene.step_numbers[reached]
    return Course(steps[reached], numbers, starts[seen], kinds[seen])
