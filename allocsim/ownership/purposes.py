"""Categories of the blocks of a program that is known by its requests, without a recording.

The category rules for recordings are used.  The position of a request among all requests and frees
of the program serves as its entry number.
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
"""Index in `CATEGORIES` of the category of each rule; the last item is "unknown"."""


def purposes_of(
    table: FrameTable,
    stack: NDArray[np.int64],
    requested: NDArray[np.int64],
    lives: Sequence[NDArray[np.int64]],
    n_entries: int,
) -> NDArray[np.int64]:
    """Return the index in `CATEGORIES` of each block's category, in order of allocation.

    stack: stack number in `table` of each block.
    requested: bytes of each request.
    lives: entries of the allocations, and entries of the frees; `n_entries` for a block that is not
        freed.
    n_entries: number of requests and frees.
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
