"""Flame graph of the memory at one moment, by stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.analysis.top.answer import Holding, Top
from allocsim.ownership import NO_STACK, is_plumbing, line_of

_LEAST_SHARE = 1 / 400
"""Least share of all memory for which a stack frame has its own box; smaller ones share a box."""
_MOST_ROWS = 48
_MOSTLY = 0.9  # a box has the category of at least this share of its memory


@dataclass(frozen=True, slots=True)
class FlameBox:
    """Box of one stack frame, or of several small frames together.

    depth: row of the box; 0 for the outermost frames.
    start: left edge in bytes.
    bytes, blocks: live memory that the frame, and the functions called in it, requested.
    category: category of at least 9/10 of the bytes; "" if there is none.
    folded: number of stacks in a box of several frames; 0 for a single frame.
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
    """Boxes of a flame graph, row by row.

    bytes: bytes of all memory; they are the width of the graph.
    least_share: share of all memory below which frames share a box.
    """

    boxes: tuple[FlameBox, ...]
    bytes: int
    categories: tuple[str, ...]
    least_share: float

    @property
    def rows(self) -> int:
        return max((box.depth + 1 for box in self.boxes), default=0)


_Name = tuple[str, str]  # line and file of a frame
_Stack = tuple[tuple[_Name, ...], Holding]
"""Names of the frames of a stack, outermost first, and the memory that this stack requested."""
_OTHER = ("other", "")


def flame_of(
    top: Top, *, least_share: float = _LEAST_SHARE, most_rows: int = _MOST_ROWS
) -> FlameGraph:
    least = least_share * top.allocated_bytes
    boxes: list[FlameBox] = []
    level = [(0, [(_names(holding), holding) for holding in top.holdings])]
    for depth in range(most_rows):
        deeper = []
        for start, stacks in level:
            at, folded = start, []
            for called in _called(stacks, depth):
                # No boxes are above the box of several frames: it includes the called functions.
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
    frames = [frame for frame in reversed(holding.frames) if not is_plumbing(frame)]
    names = [(line_of(frame), frame.filename) for frame in frames]
    if holding.silent:
        names.append((holding.silent, ""))
    return tuple(names) or ((NO_STACK, ""),)


def _called(stacks: Sequence[_Stack], depth: int) -> list[list[_Stack]]:
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
