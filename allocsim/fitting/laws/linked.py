"""Blocks that the frees of a program part release, resolved once for all its occurrences.

Rule: a free names the group of its block (blocks requested from the same stack) and the number of
younger live blocks in it. So it means either the same request at every occurrence of the part, or a
block from before the part, given by the number of younger blocks in its group when the part began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Alive", "Links", "links_of"]

_NONE = 1 << 62
"""Depth that no block has."""


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Blocks of a program part.

    block: for each row, index of its block among the part's requests, 0 if the row has none of
        them.
    is_own: for each row, whether it has a block of the part.
    older: rows that free earlier blocks, each with the group and the number of younger blocks in it
        before the part.
    left: requests whose blocks stay allocated, by group.
    n_requests: number of requests.
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
    """Return the links of a part.

    value: for a free, the number of younger live blocks in its group.
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
    """Live blocks, by group, while the parts of a program follow each other."""

    def __init__(self) -> None:
        self._of: defaultdict[int, list[int]] = defaultdict(list)
        self._count = 0

    def blocks(self, links: Links) -> NDArray[np.int64]:
        """Return the block of each row of the next part, as the index of its request.

        Raises LookupError with the number of the row if a free means a block that does not exist.
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
