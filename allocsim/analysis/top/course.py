"""Steps and phases of a recording as consecutive ranges of entries.

The ranges agree with `Scene.step_at` and `Scene.phase_at` for every entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.ownership import Phase, Scene

__all__ = ["Course", "course_of"]

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Training steps and phases of a recording.  Each lasts until the next one begins.

    step_starts: first entry of each step; empty if no steps are known.  The first step begins at 0
        unless the program marked its steps.
    step_numbers: number of each step.
    phase_starts: first entry of each phase.
    phase: phase that begins at each of `phase_starts`, as an index into `phases`.
    phases: names of phases; the first name, "", means an unknown phase.
    """

    step_starts: _Column
    step_numbers: _Column
    phase_starts: _Column
    phase: NDArray[np.uint8]
    phases: tuple[str, ...] = tuple("" if p is Phase.UNTOLD else p.text for p in Phase)

    @property
    def tells_phases(self) -> bool:
        """True if any phase is known."""
        return bool((self.phase != Phase.UNTOLD).any())


def course_of(scene: Scene, n_entries: int) -> Course:
    """Return the steps and phases of the first `n_entries` entries of `scene`."""
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
