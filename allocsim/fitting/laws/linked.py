"""Blocks that the frees of a program part release, found once for all occurrences of the part.

Rule: a free gives the group of its block (blocks requested from the same stack) and the number of
    younger live blocks in the group. So the block is either requested within the part, by the same
    row at every occurrence, or was live before the part began, at a fixed place among its group's
    blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Alive", "Links", "links_of"]

_NONE = 1 << 62
"""Impossible number of younger blocks, for a free whose block does not exist."""


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Blocks of the rows of a program part.

    block: for each row, the number of its block among the part's requests; 0 if it has none there.
    is_own: for each row, True if its block is requested within the part.
    older: frees of blocks from before the part: row, group, and number of the group's blocks that
        were younger when the part began.
    left: numbers of the requests whose blocks stay allocated, by group.
    n_requests: number of requests in the part.
    """

    block: NDArray[np.int64]
    is_own: NDArray[np.bool_]
    older: tuple[tuple[int, int, int], ...]
    left: Mapping[int, list[int]]
    n_requests: int


def links_of(
    is_request: NDArray[np.bool_],
    is_free: NDArray[np.bool_],
    group: NDArray[np.int64],
    value: NDArray[np.int64],
) -> Links:
    """Return the blocks of the rows of a program part. The columns have one element per row.

    is_request, is_free: True for a request, and for a free.
    group: group of the row's block.
    value: for a free, the number of live blocks in its group that are younger than its block.
    """
    own: defaultdict[int, list[int]] = defaultdict(list)
    freed: defaultdict[int, list[int]] = defaultdict(list)
    block, is_own = np.zeros(len(group), dtype=np.int64), np.zeros(len(group), dtype=bool)
    older, count = [], 0
    columns = (is_request, is_free, group, value)
    for i, (requests, frees, of, younger) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if requests:
            block[i], is_own[i] = count, True
            own[of].append(count)
            count += 1
        elif frees and 0 <= younger < len(own[of]):
            # The block was requested within the part, so the link holds at every occurrence.
            block[i], is_own[i] = own[of].pop(-1 - younger), True
        elif frees:
            depth = younger - len(own[of]) if younger >= 0 else _NONE
            # Shift the depth by the earlier blocks above it that this part has freed, ascending.
            for each in freed[of]:
                depth += each <= depth
            freed[of] = sorted((*freed[of], depth))
            older.append((i, of, depth))
    return Links(block, is_own, tuple(older), dict(own), count)


class Alive:
    """Live blocks by group, updated part by part in the order of the program."""

    def __init__(self) -> None:
        self._of: defaultdict[int, list[int]] = defaultdict(list)
        self._count = 0

    def blocks(self, links: Links) -> NDArray[np.int64]:
        """Append a part; return for each row the number of the request that allocated its block.

        Raises LookupError with the row if a free has no matching block.
        """
        found = np.where(links.is_own, self._count + links.block, 0)
        for row, group, depth in links.older:
            if not 0 <= depth < len(self._of[group]):
                raise LookupError(row)
            found[row] = self._of[group][-1 - depth]
        freed = {(group, depth) for _, group, depth in links.older}
        # Deeper blocks first: their removal does not change the depth of the others.
        for group, depth in sorted(freed, reverse=True):
            del self._of[group][-1 - depth]
        for group, left in links.left.items():
            self._of[group] += [self._count + each for each in left]
        self._count += links.n_requests
        return found
