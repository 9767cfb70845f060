"""Match the allocated blocks of two runs, A and B, and sum the changes of each owner of memory.

The changes of all owners add up exactly to the difference of allocated memory.

Blocks match if they have the same owner and the same stack, apart from line numbers.  The first
block of A with this stack matches the first block of B, and so on.  If the number of blocks with
this stack differs, blocks of equal size are matched first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from allocsim.ownership import LINE, Held, moved_lines, status_of


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one owner from A to B.

    owner: name of the owner in B; name in A if it holds no memory in B.
    was: name of the owner in A, which differs if the line moved.
    a_bytes, b_bytes, a_blocks, b_blocks: bytes and number of blocks in A and in B.
    resized: part of the change due to blocks that match but have another size, in bytes.
    requested: change of the bytes before rounding.
    """

    owner: str
    was: str
    a_bytes: int
    b_bytes: int
    a_blocks: int
    b_blocks: int
    resized: int
    requested: int

    @property
    def bytes(self) -> int:
        """Bytes in B minus bytes in A."""
        return self.b_bytes - self.a_bytes

    @property
    def more(self) -> int:
        """Part of the change due to blocks that exist in A or B only, in bytes."""
        return self.bytes - self.resized

    @property
    def rounding(self) -> int:
        """Part of the change due to size rounding, in bytes."""
        return self.bytes - self.requested

    @property
    def status(self) -> str:
        """Status: "new", "gone", "larger", "smaller" or "same"."""
        return status_of(self.bytes, was_there=bool(self.a_blocks), is_there=bool(self.b_blocks))


def changes_of(a: Held, b: Held, by: str) -> tuple[Change, ...]:
    """Return the changes of all owners from A to B, largest first.

    by: grouping of owners: "line", "stack", "module", "category", "stream" or "pool".
    """
    first, second = _Owned(a, by), _Owned(b, by)
    named = moved_lines(first.indices, second.indices) if by in ("line", "stack", "module") else {}
    moved = {was: now for now, was in named.items()}
    owners = dict.fromkeys([*(moved.get(owner, owner) for owner in first.indices), *second.indices])
    made = [_change(first, second, owner, named.get(owner, owner)) for owner in owners]
    return tuple(sorted(made, key=lambda each: (-abs(each.bytes), -each.b_bytes, each.owner)))


class _Owned:
    """Allocated blocks of one run, grouped by owner."""

    def __init__(self, held: Held, by: str) -> None:
        self.held, self.sizes = held, held.sizes
        self.requested: list[int] = held.blocks.requested[held.rows].tolist()
        self.indices: dict[str, list[int]] = defaultdict(list)
        for index in range(len(held)):
            self.indices[held.name(by, index)].append(index)

    def of(self, owner: str) -> Sequence[int]:
        """Return the indices of an owner's blocks, in order of allocation."""
        return self.indices.get(owner, ())

    def by_stack(self, owner: str) -> dict[str, list[int]]:
        """Return the sizes of an owner's blocks by stack without line numbers."""
        found: dict[str, list[int]] = defaultdict(list)
        for index in self.of(owner):
            found[LINE.sub("", self.held.name("stack", index))].append(self.sizes[index])
        return found


def _change(a: _Owned, b: _Owned, owner: str, was: str) -> Change:
    ours, theirs = a.of(was), b.of(owner)
    sums = [sum(side.sizes[i] for i in of) for side, of in ((a, ours), (b, theirs))]
    asked = [sum(side.requested[i] for i in of) for side, of in ((a, ours), (b, theirs))]
    return Change(
        owner=owner if theirs else was,
        was=was if theirs else owner,
        a_bytes=sums[0],
        b_bytes=sums[1],
        a_blocks=len(ours),
        b_blocks=len(theirs),
        resized=_resized(a.by_stack(was), b.by_stack(owner)),
        requested=asked[1] - asked[0],
    )


def _resized(a: Mapping[str, Sequence[int]], b: Mapping[str, Sequence[int]]) -> int:
    """Return the bytes by which matching blocks have grown.

    a, b: sizes of blocks by stack.
    """
    found = 0
    for stack in a.keys() & b.keys():
        ours, theirs = list(a[stack]), list(b[stack])
        if len(ours) != len(theirs):
            same = Counter(ours) & Counter(theirs)
            ours, theirs = _without(ours, same), _without(theirs, same)
        pairs = zip_longest(ours, theirs)
        found += sum(y - x for x, y in pairs if x is not None and y is not None)
    return found


def _without(sizes: Sequence[int], taken: Counter[int]) -> list[int]:
    left, kept = Counter(taken), []
    for size in sizes:
        if left[size]:
            left[size] -= 1
        else:
            kept.append(size)
    return kept
