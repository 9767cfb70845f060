"""What blocks are for that no recording holds: by stacks and lives of a program's requests.

Rule: the rules are those of a recording's blocks, and what they ask is answered alike; a request's
place among the program's requests and frees is its entry.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import distinct
from allocsim.owners.blocks import Blocks
from allocsim.owners.rules import CATEGORIES, RULES, UNKNOWN, rules_of
from allocsim.owners.scene import scene_of
from allocsim.owners.stacks import kinds_of
from allocsim.trace import FrameTable

__all__ = ["purposes_of"]

_NUMBERS = np.array(
    [*(CATEGORIES.index(rule.category) for rule in RULES), CATEGORIES.index(UNKNOWN)]
)
"""The category of each rule, and last that of a block that none reaches."""


def purposes_of(
    table: FrameTable,
    stack: NDArray[np.int64],
    requested: NDArray[np.int64],
    lives: Sequence[NDArray[np.int64]],
    n_entries: int,
) -> NDArray[np.int64]:
    """The number in `CATEGORIES` of each block, in the order of births.

    stack: of each block, its number in `table`.  requested: bytes asked for.
    lives: the entries that each is born and freed at, `n_entries` where it stays.
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
