"""The blocks of two moments, paired owner by owner and request by request.

Rule: the changes of all owners add up to the difference of allocated memory, to the byte, and so do
the parts of each.  Two requests are paired if the same stack made them and they have the same rank
among the blocks of that stack that live; where these differ in number, blocks of equal size are
paired first.  Line numbers are ignored, so that a line that moved is still the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from allocsim.owners import LINE, Held, moved_lines, status_of

__all__ = ["Change", "changes_of"]


@dataclass(frozen=True, slots=True)
class Change:
    """One owner, in both.

    owner: its name in B, or in A where it is gone; was: its name in A where that is another, since
    its line moved.
    a_bytes, b_bytes, a_blocks, b_blocks: what it holds in each.
    resized: bytes by which requests that both have changed; of requests that one has alone is the
    rest.  requested: of the whole change, what was asked for; the rest is rounding.
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
        """By how many bytes B holds more."""
        return self.b_bytes - self.a_bytes

    @property
    def more(self) -> int:
        """Of them, those of requests that only one of the two has."""
        return self.bytes - self.resized

    @property
    def rounding(self) -> int:
        """Of them, what is not asked for."""
        return self.bytes - self.requested

    @property
    def status(self) -> str:
        """See `status_of`."""
        return status_of(self.bytes, was_there=bool(self.a_blocks), is_there=bool(self.b_blocks))


def changes_of(a: Held, b: Held, by: str) -> tuple[Change, ...]:
    """The owners of both moments, the greatest change first."""
    first, second = _Owned(a, by), _Owned(b, by)
    named = moved_lines(first.indices, second.indices) if by in ("line", "stack", "module") else {}
    moved = {was: now for now, was in named.items()}
    owners = dict.fromkeys([*(moved.get(owner, owner) for owner in first.indices), *second.indices])
    made = [_change(first, second, owner, named.get(owner, owner)) for owner in owners]
    return tuple(sorted(made, key=lambda each: (-abs(each.bytes), -each.b_bytes, each.owner)))


class _Owned:
    """The blocks of a moment by their owners."""

    def __init__(self, held: Held, by: str) -> None:
        self.held, self.sizes = held, held.sizes
        self.requested: list[int] = held.blocks.requested[held.rows].tolist()
        self.indices: dict[str, list[int]] = defaultdict(list)
        for index in range(len(held)):
            self.indices[held.name(by, index)].append(index)

    def of(self, owner: str) -> Sequence[int]:
        """The blocks of an owner, in the order of their births."""
        return self.indices.get(owner, ())

    def by_stack(self, owner: str) -> dict[str, list[int]]:
        """Sizes of an owner's blocks by the stacks that made them."""
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
    """By how much the requests that both have differ.

    Those that differ in number are matched by size first, as which of them is new is not known.
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
