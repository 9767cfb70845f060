"""Numbers embedded in a report's page: compressed columns, and a dictionary that describes them.

Sizes and addresses are multiples of 512 bytes, and are embedded in that unit to fit in 32 bits.
"""

# Each column is stored as differences of neighbours, in the smallest integer type. All columns are
# concatenated, compressed by gzip and encoded as base64. JavaScript cannot represent numbers above
# 2**53.

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.analysis.picture import CLASS_NAMES, Picture, axis_of, class_of, owners_of
from allocsim.analysis.top import CATEGORIES, Course, StackAnswers
from allocsim.core import MIN_BLOCK_SIZE, SMALL_BUFFER
from allocsim.metrics import levels_of
from allocsim.recording import Action, FrameTable
from allocsim.report.packing import pool_text
from allocsim.state import DEFAULT_POOL

SERIES = ("reserved", "requested", "allocated", "ideal")
FIRST_LEVEL, FACTOR, ENOUGH = 8, 8, 1500
_SHOWN_FRAMES = 12
_TYPES: tuple[Any, ...] = (np.int8, np.int16, np.int32, np.float64)
_LARGEST = 1 << 53
_LEVEL = 4
_ALIGNMENT = 8


def embedded(picture: Picture, answers: StackAnswers | None = None) -> tuple[dict[str, Any], str]:
    """Return the history of a device for an HTML page: (description for JSON, compressed columns).

    answers: categories of blocks, and training steps and phases of the run; None if unknown.
    """
    course = None if answers is None else answers.course
    packer = Packer()
    steps = _add_curves(packer, picture)
    axis = axis_of(picture.lives)
    for name, word in zip(("high", "low"), np.divmod(axis.start, 1 << 32), strict=True):
        packer.add(f"range.{name}", word)
    packer.add("range.offset", axis.offset // MIN_BLOCK_SIZE)
    streams = np.unique(picture.lives.blocks.stream)
    owners, stacks = _add_blocks(packer, picture, streams)
    categories = _add_categories(packer, picture, answers)
    groups = _segments(packer, picture)
    _course(packer, course)
    _add_times(packer, picture)
    packer.add("action", picture.trace.action[: picture.lives.n_entries])
    return {
        "columns": packer.index,
        "unit": MIN_BLOCK_SIZE,
        "n": picture.lives.n_entries,
        "axis": max(axis.total, SMALL_BUFFER) // MIN_BLOCK_SIZE,
        "series": SERIES,
        "levels": steps,
        "streams": [hex(int(stream)) for stream in streams],
        "owners": owners,
        "groups": groups,
        "categories": categories,
        "sizes": CLASS_NAMES,
        "stacks": stacks,
        "actions": [action.text for action in Action],
        "expandable": picture.is_expandable,
        "phases": ("",) if course is None else course.phases,
        "ooms": [oom.entry for oom in picture.device_run.ooms],
        "peak": max(picture.device_run.peak.entry, 0),
        "memory": picture.device_run.device_memory,
    }, packer.text()


def _add_curves(packer: Packer, picture: Picture) -> list[int]:
    steps: list[int] = []
    for name in SERIES:
        values = getattr(picture.curve, name)
        packer.add(name, values)
        levels = levels_of(values, FIRST_LEVEL, FACTOR, ENOUGH)
        steps = [level.step for level in levels]
        for level in levels:
            packer.add(f"{name}.low.{level.step}", level.low)
            packer.add(f"{name}.high.{level.step}", level.high)
    packer.add("takes", picture.curve.driver_takes)
    packer.add("gives", picture.curve.driver_gives)
    return steps


def _add_blocks(packer: Packer, picture: Picture, streams: Any) -> tuple[list[str], list[str]]:
    blocks = picture.lives.blocks
    place = axis_of(picture.lives).place(blocks.address)
    owners = owners_of(blocks, picture.trace.frame_table)
    stacks, stack = np.unique(blocks.stack, return_inverse=True)
    packer.add("block.place", place // MIN_BLOCK_SIZE)
    packer.add("block.size", blocks.size // MIN_BLOCK_SIZE)
    packer.add("block.slack", blocks.size - blocks.requested)
    packer.add("block.born", blocks.born)
    packer.add("block.lived", blocks.freed - blocks.born)
    packer.add("block.waited", blocks.completed - blocks.freed)
    packer.add("block.stream", np.searchsorted(streams, blocks.stream))
    packer.add("block.owner", owners.owner)
    packer.add("block.class", class_of(blocks.size))
    packer.add("block.stack", stack)
    texts = [_stack_text(picture.trace.frame_table, int(number)) for number in stacks]
    return list(owners.names), texts


def _add_categories(
    packer: Packer, picture: Picture, answers: StackAnswers | None
) -> list[dict[str, Any]]:
    # Category 0 holds most bytes, summed over entries.
    blocks = picture.lives.blocks
    if answers is None:
        packer.add("block.category", np.zeros(len(blocks), dtype=np.int64))
        return []
    kind = answers.categories_of(blocks.born, blocks.address)
    lived = (blocks.freed - blocks.born).astype(np.float64) * blocks.size
    held = np.bincount(kind, weights=lived, minlength=len(CATEGORIES))
    order = np.argsort(-held, kind="stable")
    shown = [int(number) for number in order if (kind == number).any()]
    packer.add("block.category", np.argsort(order)[kind])
    return [{"name": CATEGORIES[number], "number": number} for number in shown]


def _course(packer: Packer, course: Course | None) -> None:
    none = np.zeros(0, dtype=np.int64)
    packer.add("step.start", none if course is None else course.step_starts)
    packer.add("step.number", none if course is None else course.step_numbers)
    packer.add("phase.start", none if course is None else course.phase_starts)
    packer.add("phase.kind", none if course is None else course.phase)


def _add_times(packer: Packer, picture: Picture) -> None:
    time = picture.trace.time_us
    if time is None or bool((np.diff(time) == 1).all()):
        return  # not recorded, or a simulated recording
    time = time[: picture.lives.n_entries]
    packer.add("time", np.maximum.accumulate(time) - time[0])


def _segments(packer: Packer, picture: Picture) -> list[str]:
    segments = picture.lives.segments
    place = axis_of(picture.lives).place(segments.address)
    names, group = _pool_of_segments(picture)
    packer.add("segment.place", place // MIN_BLOCK_SIZE)
    packer.add("segment.size", segments.size // MIN_BLOCK_SIZE)
    packer.add("segment.born", segments.born)
    packer.add("segment.lived", segments.died - segments.born)
    packer.add("segment.group", group)
    return names


def _pool_of_segments(picture: Picture) -> tuple[list[str], NDArray[np.int64]]:
    lives, segments = picture.lives, picture.lives.segments
    numbers: dict[str, int] = {}
    kinds = zip(
        (segments.size == SMALL_BUFFER).tolist(),
        segments.pool.tolist(),
        segments.stream.tolist(),
        strict=True,
    )
    group = [
        numbers.setdefault(
            pool_text(
                is_small=is_small,
                is_expandable=picture.is_expandable,
                pool=lives.pools[pool] if pool >= 0 else DEFAULT_POOL,
                stream=stream,
            ),
            len(numbers),
        )
        for is_small, pool, stream in kinds
    ]
    return list(numbers), np.array(group, dtype=np.int64)


def _stack_text(table: FrameTable, number: int) -> str:
    frames = table.stack(number) if number >= 0 else ()
    lines = [f"{frame.filename}:{frame.line} {frame.name}" for frame in frames[:_SHOWN_FRAMES]]
    if len(frames) > _SHOWN_FRAMES:
        lines.append(f"and {len(frames) - _SHOWN_FRAMES} more")
    return "\n".join(lines)


@dataclass(slots=True)
class Packer:
    """Columns of numbers, compressed together for a page.

    index: type, number of values and offset of each column; the offset is in bytes of the
        uncompressed data that `text()` encodes.
    """

    index: dict[str, list[object]] = field(default_factory=dict)
    _parts: list[bytes] = field(default_factory=list)
    _offset: int = 0

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Add a column; raise ValueError for an integer above 2**53."""
        if len(values) and max(abs(int(values.min())), abs(int(values.max()))) > _LARGEST:
            raise ValueError(f"column {name} has numbers above 2**53")
        changes = np.diff(values.astype(np.int64), prepend=0).astype(np.int64)
        kind = next(kind for kind in _TYPES if _holds(kind, changes))
        data = changes.astype(kind).tobytes()
        self.index[name] = [np.dtype(kind).name, len(values), self._offset]
        padding = -len(data) % _ALIGNMENT
        self._parts += [data, bytes(padding)]
        self._offset += len(data) + padding

    def text(self) -> str:
        packed = gzip.compress(b"".join(self._parts), _LEVEL, mtime=0)
        return base64.b64encode(packed).decode("ascii")


def _holds(kind: Any, changes: NDArray[np.int64]) -> bool:
    if kind is np.float64 or not len(changes):
        return True
    limits = np.iinfo(kind)
    return bool(changes.min() >= limits.min and changes.max() <= limits.max)
