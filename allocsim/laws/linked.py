"""Which block each free of a stretch gives back, found once for all places where it stands.

Rule: a free names the kin of its block, those that the same stack requested, and how many younger
ones there are.  So within a stretch it means the same request wherever the stretch stands, or else
a block from before it, told by how many of its kin were younger when the stretch began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Alive", "Links", "links_of"]

_NONE = 1 << 62
"""The depth of no block."""


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """The blocks of a stretch.

    block: by row, the block by request of the stretch; 0 in rows that mean none of them.
    is_own: by row, whether it does.  older: the rows that free blocks that were there before, each
    with the kin and how many of it were younger before the stretch.
    left: by kin, the requests whose blocks it leaves.  n_requests: how many it makes.
    """

    block: NDArray[np.int64]
    is_own: NDArray[np.bool_]
    older: tuple[tuple[int, int, int], ...]
    left: Mapping[int, list[int]]
    n_requests: int


def links_of(
    is_request: NDArray[np.bool_],
    is_free: NDArray[np.bool_],
    kin: NDArray[np.int64],
    value: NDArray[np.int64],
) -> Links:
    """The links of a stretch; value: of a free, how many younger blocks of its kin there are."""
    own: defaultdict[int, list[int]] = defaultdict(list)
    gone: defaultdict[int, list[int]] = defaultdict(list)
    block, is_own = np.zeros(len(kin), dtype=np.int64), np.zeros(len(kin), dtype=bool)
    older, count = [], 0
    columns = (is_request, is_free, kin, value)
    for i, (asks, frees, of, younger) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if asks:
            block[i], is_own[i] = count, True
            own[of].append(count)
            count += 1
        elif frees and 0 <= younger < len(own[of]):
            block[i], is_own[i] = own[of].pop(-1 - younger), True
        elif frees:
            depth = younger - len(own[of]) if younger >= 0 else _NONE
            for each in gone[of]:  # in their order: those above are not there any more
                depth += each <= depth
            gone[of] = sorted((*gone[of], depth))
            older.append((i, of, depth))
    return Links(block, is_own, tuple(older), dict(own), count)


class Alive:
    """The blocks that are there, by kin, as stretches come and go."""

    def __init__(self) -> None:
        self._of: defaultdict[int, list[int]] = defaultdict(list)
        self._count = 0

    def blocks(self, links: Links) -> NDArray[np.int64]:
        """By row of a stretch that comes next, the number of its block, by request.

        A free that means no block that is there is a LookupError, with the number of its row.
        """
        found = np.where(links.is_own, self._count + links.block, 0)
        for row, kin, depth in links.older:
            if not 0 <= depth < len(self._of[kin]):
                raise LookupError(row)
            found[row] = self._of[kin][-1 - depth]
        gone = {(kin, depth) for _, kin, depth in links.older}
        for kin, depth in sorted(gone, reverse=True):  # what is deeper moves none of the others
            del self._of[kin][-1 - depth]
        for kin, left in links.left.items():
            self._of[kin] += [self._count + each for each in left]
        self._count += links.n_requests
        return found
