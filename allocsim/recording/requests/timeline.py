"""Read requests and frees from PyTorch's memory timeline (`export_memory_timeline`, raw rows).

The rows do not identify blocks, so a free is assigned to the most recently requested live block of
its category and size.  A tensor that changes its category has two rows, a release in the old and a
request in the new category, and keeps its block.

A row is [nanoseconds, action, bytes, category].  Actions are 1 (existed before the timeline),
2 (created), 3 (changed its category) and 4 (destroyed).  Nanoseconds are -1 for action 1, and bytes
are negative for released memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, cast

from allocsim.errors import RecordingError
from allocsim.recording.fields import INT64_MAX, describe
from allocsim.recording.frames import Frame, FrameInterner
from allocsim.recording.recording import MEMORY_TIMELINE, Recording
from allocsim.recording.requests.blocks import RequestColumns
from allocsim.units import format_size

_PREEXISTING, _CREATE, _VERSION, _DESTROY = 1, 2, 3, 4
CATEGORIES = (
    "parameter",
    "optimizer state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd detail",
    "unknown",
)
"""Name of each category; its index is the number in rows."""

_Row = tuple[int, int, int, int]


def is_timeline(value: object) -> bool:
    """Return True if a JSON value is a memory timeline: raw rows, or sums by category."""
    return isinstance(value, list) and (_is_row(value[:1]) or _is_sums(value))


def _is_row(rows: list[object]) -> bool:
    match rows:
        case [[int(), int(), int(), int()]]:
            return True
    return False


def _is_sums(value: list[object]) -> bool:
    """Return True for [times, list of the bytes of each category at each time]."""
    match value:
        case [[int() | float(), *_] as times, [[*_], *_] as sums]:
            return len(times) == len(sums)
    return False


def read_timeline(path: str, value: list[object]) -> Recording:
    """Return the recording in a timeline of raw rows; RecordingError for sums by category."""
    if not _is_row(value[:1]):
        _refuse_sums(path, value)
    interner = FrameInterner()
    frames = [interner.stack([interner.frame(Frame("<timeline>", what, 0))]) for what in CATEGORIES]
    blocks = RequestColumns()
    left: tuple[int, int] | None = None
    for number, (time, action, moved, category) in enumerate(_rows(path, value)):
        if action == _VERSION:
            # A pair of rows: release in the old category, request in the new category.
            if left is None:
                left = -moved, category
            elif left[0] == moved:
                blocks.move(moved, left[1], category)
                left = None
            else:
                _refuse(path, number, "is a new version of another size than the old one")
            continue
        moment = max(time, 0) // 1000
        if action == _DESTROY:
            blocks.free(-moved, None, time=moment, group=category)
        else:
            blocks.alloc(moved, None, time=moment, stack=frames[category], group=category)
    table = interner.table()
    trace = blocks.trace(0, table, has_times=False)
    notes = [
        "a memory timeline of the profiler: it names no block, stream or segment, so each free is "
        "taken for one of the last requested block of its size and category, requests are replayed "
        "by size on one stream, and their addresses are compared with nothing"
    ]
    if blocks.n_before:
        count = f"{blocks.n_before:,} blocks ({format_size(blocks.bytes_before)})"
        notes.append(f"{count} are freed and never requested: they are requested first")
    return Recording(
        path=path,
        layout=MEMORY_TIMELINE,
        devices=(trace,),
        frame_table=table,
        notes=tuple(notes),
    )


def _rows(path: str, value: list[object]) -> Iterator[_Row]:
    for number, row in enumerate(value):
        match row:
            case [int(time), int(action), int(moved), int(category)]:
                is_known = 1 <= action <= len(_SIGNS) and 0 <= category < len(CATEGORIES)
                if not is_known or abs(moved) > INT64_MAX or abs(time) > INT64_MAX:
                    _refuse(path, number, f"is {row!r}"[:100])
                if moved * _SIGNS[action - 1] < 0:
                    _refuse(path, number, f"moves {moved} bytes by action {action}")
                if moved:
                    yield time, action, moved, category
            case _:
                _refuse(path, number, f"is {describe(row)}")


_SIGNS = (1, 1, 0, -1)


def _refuse(path: str, row: int, what: str) -> NoReturn:
    expected = "[nanoseconds, action 1 to 4, bytes, category 0 to 7]"
    raise RecordingError(path, f"row {row} of the timeline {what}, expected {expected}")


def _refuse_sums(path: str, value: list[object]) -> NoReturn:
    sums = cast(list[list[object]], value[1])
    most = max((_sum(row) for row in sums), default=0)
    raise RecordingError(
        path,
        f"is a memory timeline as sums by category ({len(sums)} moments, at most "
        f"{format_size(most)} in all), which holds no single request; export the rows: "
        "export_memory_timeline('timeline.raw.json.gz')",
    )


def _sum(row: object) -> int:
    """Return the sum of the bytes of all categories at one moment."""
    values = row if isinstance(row, list) else []
    return sum(v for v in values if type(v) is int and 0 <= v <= INT64_MAX)
