"""Categories of blocks that are known only as requests of a program, without a recording.

The rules are those for the blocks of a recording.  The position of a request among the program's
requests and frees serves as its entry number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import distinct
from allocsim.ownership.blocks import Blocks
from allocsim.ownership.rules import CATEGORIES, RULES, UNKNOWN, rules_of
from allocsim.ownership.scene import scene_of
from allocsim.ownership.stacks import kinds_of
from allocsim.recording import FrameTable

__all__ = ["purposes_of"]

_NUMBERS = np.array(
    [*(CATEGORIES.index(rule.category) for rule in RULES), CATEGORIES.index(UNKNOWN)]
)
"""Category of each rule; the last item is for blocks to which no rule applies."""


def purposes_of(
    table: FrameTable,
    stack: NDArray[np.int64],
    requested: NDArray[np.int64],
    lives: Sequence[NDArray[np.int64]],
    n_entries: int,
) -> NDArray[np.int64]:
    """Return the index in `CATEGORIES` of each block, in order of allocation.

    stack: stack number in `table` of each block.
    requested: bytes of each request.
    lives: entries of allocation and free of each block; `n_entries` if it is not freed.
    """
    born, freed = lives
    n = len(born)
    blocks = Blocks(
        address=np.zeros(n, dtype=np.uint64),
        size=requested,
        requested=requested,
        stream=np.zeros(n, dtype=np.uint64),
        pool=np.full(n, -1, dtype=np.int32),
        stack=stack.astype(np.int32),
        born=born,
        freed=freed,
        completed=freed,
        n_entries=n_entries,
        pools=(),
    )
    kinds = kinds_of(table, distinct(blocks.stack).tolist())
    return _NUMBERS[rules_of(scene_of(blocks, kinds, is_state_only=False))]
