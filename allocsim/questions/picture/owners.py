"""Whose code asked for each block: the user's innermost line, as numbers into a list of names.

Rule: owners are ordered by the memory they held over time (bytes times entries), the greatest
first; blocks whose stack is not recorded, and those from before, have owners of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.measures import code_of
from allocsim.questions.picture.lives import BlockLives
from allocsim.trace import FrameTable

__all__ = ["Owners", "owners_of"]

BEFORE, UNKNOWN = "from before the recording", "no stack recorded"


@dataclass(frozen=True, slots=True, eq=False)
class Owners:
    """owner: of each block, an index into `names`."""

    owner: NDArray[np.int64]
    names: tuple[str, ...]


def owners_of(blocks: BlockLives, table: FrameTable) -> Owners:
    """The owners of `blocks`, whose stacks are those of `table`."""
    stacks, which = np.unique(blocks.stack, return_inverse=True)
    numbers: dict[str, int] = {BEFORE: 0, UNKNOWN: 1}
    codes = [code_of(table.stack(stack)) if stack >= 0 else None for stack in stacks.tolist()]
    named = [UNKNOWN if code is None else str(code) for code in codes]
    of_stack = [numbers.setdefault(name, len(numbers)) for name in named]
    owner = np.array(of_stack, dtype=np.int64)[which]
    owner = np.where((blocks.born < 0) & (blocks.stack < 0), 0, owner)
    held = (blocks.freed - np.maximum(blocks.born, 0)) * blocks.size.astype(np.float64)
    weight = np.bincount(owner, held, len(numbers))
    order = [int(i) for i in np.argsort(-weight, kind="stable") if (owner == i).any()]
    rank = np.zeros(len(numbers), dtype=np.int64)
    rank[order] = np.arange(len(order))
    names = list(numbers)
    return Owners(rank[owner], tuple(names[i] for i in order))
