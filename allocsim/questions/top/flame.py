"""The memory of a moment as a flame graph: a box for each frame, as wide as what it asked for.

Rule: boxes of one depth never overlap, and a box lies within that of the frame that called it;
what is right of a frame's callees it asked for itself.  Frames are merged by the whole stack up to
them, so one line has a box for each way that led there.  Nothing is left out: frames that are too
narrow, or too deep, are one box "other" with all that they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.owners import NO_STACK, is_plumbing, line_of
from allocsim.questions.top.top import Holding, Top

__all__ = ["FlameBox", "FlameGraph", "flame_of"]

_LEAST_SHARE = 1 / 400
"""Of all memory: what is narrower can be neither read nor pointed at."""
_MOST_ROWS = 48
_MOSTLY = 0.9
"""The share of a frame's memory from which on it is said to be of one category."""


@dataclass(frozen=True, slots=True)
class FlameBox:
    """A frame, or several that are folded.

    depth: 0 for the outermost frames.  start: bytes to the left of it.  file: the frame's, as it is
    recorded, "" where it is no frame.  category: the one that nine tenths of it are of, "" where
    there is none.  folded: of an "other" how many stacks it stands for, else 0.
    """

    depth: int
    start: int
    bytes: int
    blocks: int
    name: str
    file: str
    category: str
    folded: int = 0


@dataclass(frozen=True, slots=True)
class FlameGraph:
    """All boxes, row by row.  categories: of all memory, the largest first.  least_share: of all
    memory, below which frames are folded."""

    boxes: tuple[FlameBox, ...]
    bytes: int
    categories: tuple[str, ...]
    least_share: float

    @property
    def rows(self) -> int:
        """How deep it is."""
        return max((box.depth + 1 for box in self.boxes), default=0)


_Name = tuple[str, str]
"""A frame's line and file."""
_Stack = tuple[tuple[_Name, ...], Holding]
"""The names from the outermost frame on, and what was asked for there."""
_OTHER = ("other", "")


def flame_of(
    top: Top, *, least_share: float = _LEAST_SHARE, most_rows: int = _MOST_ROWS
) -> FlameGraph:
    """The memory of an answer by stacks.

    least_share: of all memory, below which frames are folded.  most_rows: those of the last one
    are folded, with all below them.
    """
    least = least_share * top.allocated_bytes
    boxes: list[FlameBox] = []
    level = [(0, [(_names(holding), holding) for holding in top.holdings])]
    for depth in range(most_rows):
        deeper = []
        for start, stacks in level:
            at, folded = start, []
            for called in _called(stacks, depth):
                if _bytes(called) < least or depth == most_rows - 1:
                    folded += called
                    continue
                boxes.append(_box(depth, at, called, called[0][0][depth]))
                deeper.append((at, called))
                at += _bytes(called)
            if folded:
                boxes.append(_box(depth, at, folded, _OTHER, len({names for names, _ in folded})))
        level = deeper
    return FlameGraph(tuple(boxes), top.allocated_bytes, tuple(top.categories), least_share)


def _names(holding: Holding) -> tuple[_Name, ...]:
    """From the outermost frame on, without what only stands between a call and what is called."""
    frames = [frame for frame in reversed(holding.frames) if not is_plumbing(frame)]
    names = [(line_of(frame), frame.filename) for frame in frames]
    if holding.silent:
        names.append((holding.silent, ""))
    return tuple(names) or ((NO_STACK, ""),)


def _called(stacks: Sequence[_Stack], depth: int) -> list[list[_Stack]]:
    """The stacks that go on at `depth`, by the frame there, the one with most memory first."""
    groups: dict[_Name, list[_Stack]] = {}
    for stack in stacks:
        if len(stack[0]) > depth:
            groups.setdefault(stack[0][depth], []).append(stack)
    return sorted(groups.values(), key=lambda group: (-_bytes(group), group[0][0][depth]))


def _bytes(stacks: Sequence[_Stack]) -> int:
    return sum(holding.bytes for _, holding in stacks)


def _box(
    depth: int, start: int, stacks: Sequence[_Stack], name: _Name, folded: int = 0
) -> FlameBox:
    size = _bytes(stacks)
    found: dict[str, int] = {}
    for _, holding in stacks:
        found[holding.category] = found.get(holding.category, 0) + holding.bytes
    most = max(found, key=lambda category: found[category])
    return FlameBox(
        depth=depth,
        start=start,
        bytes=size,
        blocks=sum(holding.blocks for _, holding in stacks),
        name=name[0],
        file=name[1],
        category=most if found[most] >= _MOSTLY * size else "",
        folded=folded,
    )
