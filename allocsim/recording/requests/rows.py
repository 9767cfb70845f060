"""Read requests and frees from rows: CSV or JSON that users write, and PyTorch's memory timeline.

In a user's file, columns are found by name, in any order, and the column `addr` or `id` identifies
the block of a row (docs/reference/formats.md).
"""

# A raw row of `export_memory_timeline` is [nanoseconds, action, bytes, category]. Actions are 1
# (existed before the timeline), 2 (created), 3 (changed its category) and 4 (destroyed).
# Nanoseconds are -1 for action 1, and bytes are negative for freed memory. The rows do not
# identify blocks, so a free is assigned to the most recently requested live block of its category
# and size. A change of category has two rows: a free in the old category, and a request in the
# new one. The tensor keeps its block.

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NoReturn, cast

from allocsim.errors import RecordingError
from allocsim.recording.fields import INT64_MAX, UINT64_MAX, Fields, describe
from allocsim.recording.frames import Frame, FrameInterner, StackReader
from allocsim.recording.recording import MEMORY_TIMELINE, ROWS, Recording
from allocsim.recording.requests.builders import RequestColumns
from allocsim.recording.trace import Action
from allocsim.units import format_size

_ALLOC, _FREE = "alloc", "free"
_ALIASES = {
    "action": ("action", "event", "op"),
    "size": ("size", "bytes", "requested_size"),
    "name": ("addr", "address", "ptr", "id", "block"),
    "device": ("device", "device_id"),
    "stream": ("stream", "stream_id"),
    "time": ("time_us",),
    "label": ("name", "label"),
}
_SAME = {"malloc": _ALLOC, "allocate": _ALLOC, "deallocate": _FREE, "dealloc": _FREE}
_PASSED_OVER = {action.text for action in Action} - {"alloc", "free_requested", "free_completed"}
_NUMBER = re.compile(r"(?:0x[0-9a-fA-F]{1,16}|[0-9]{1,20})")
_MAX_DEVICES = 1024


def is_rows(value: object) -> bool:
    """Return True if a JSON value is a request or free, or a list of them, written by a user."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and _column(first, "action") in first and "ph" not in first


def read_csv(path: str, file: BinaryIO) -> Recording:
    """Return the recording in a CSV file whose first line names the columns."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        sample = text.readline(1 << 16)
        separator = max(",;\t", key=sample.count)
        text.seek(0)
        rows = csv.DictReader(text, delimiter=separator, skipinitialspace=True)
        names = [name.strip().lower() for name in rows.fieldnames or ()]
        rows.fieldnames = names
        return _read(path, (_plain(path, row) for row in rows))
    except UnicodeDecodeError:
        raise RecordingError(path, "is a table that is no UTF-8 text") from None
    except csv.Error as error:
        raise RecordingError(path, f"is no sound CSV ({ascii(str(error)[:80])[1:-1]})") from None
    finally:
        text.detach()


def _plain(path: str, row: dict[str, str | None]) -> dict[str, object]:
    if None in row:
        raise RecordingError(path, f"has a row with more fields than columns: {describe(row)}")
    return {name: value.strip() for name, value in row.items() if value and value.strip()}


def read_lines(path: str, file: BinaryIO) -> Recording:

    def objects() -> Iterator[object]:
        for number, line in enumerate(file):
            if line.strip():
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    what = f"line {number + 1} is no sound JSON object"
                    raise RecordingError(path, what) from None

    return _read(path, objects())


def read_row_objects(path: str, value: object) -> Recording:
    return _read(path, value if isinstance(value, list) else [value])


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.devices: dict[int, RequestColumns] = {}
        self.timed: dict[int, bool] = {}
        self.interner = FrameInterner()
        self.n_passed_over = 0
        self.n_missed = 0
        self._names: dict[str, int] = {}
        self._labels: dict[str, int] = {}

    def take(self, number: int, value: object) -> None:
        row = Fields(self.path, f"row {number}", value, entry=None)
        at = {part: _column(row, part) for part in _ALIASES}
        action = row.text(at["action"]).lower()
        action = _SAME.get(action, action)
        if action in _PASSED_OVER:
            self.n_passed_over += 1
            return
        if action not in (_ALLOC, _FREE, "free_requested", "free_completed"):
            row.wrong(at["action"], action, "alloc, free, free_requested or free_completed")
        device = _integer(row, at["device"], _MAX_DEVICES - 1) if at["device"] in row else 0
        blocks = self.devices.setdefault(device, RequestColumns())
        has_time = at["time"] in row
        self.timed[device] = self.timed.get(device, True) and has_time
        time = _integer(row, at["time"], INT64_MAX) if has_time else 0
        name = self._name(row, at["name"])
        size = _integer(row, at["size"], INT64_MAX) if at["size"] in row else None
        stack = self._stack(row, at["label"])
        if action == _ALLOC:
            if size is None:
                row.refuse(f"row {number} allocates without a size, expected bytes")
            stream = _integer(row, at["stream"], UINT64_MAX) if at["stream"] in row else 0
            if size:
                blocks.alloc(size, name, time=time, stack=stack, stream=stream)
        elif action == _FREE:
            blocks.free(size or 0, name, time=time, stack=stack)
        elif action == "free_requested":
            if not blocks.request_free(name, time=time, stack=stack):
                self.n_missed += 1
        elif not blocks.complete_free(name, time=time, stack=stack):
            self.n_missed += 1

    def _name(self, row: Fields, column: str) -> int:
        value = row.value(column, "the block's address or id")
        if type(value) is int and 0 <= value <= UINT64_MAX:
            return value
        if type(value) is not str:
            row.wrong(column, value, "an address or an id")
        if column not in ("id", "block") and _NUMBER.fullmatch(value):
            number = int(value, 0) if value.startswith("0x") else int(value)
            if number <= UINT64_MAX:
                return number
        return self._names.setdefault(value, len(self._names))

    def _stack(self, row: Fields, label: str) -> int:
        if "frames" in row and not isinstance(row.value("frames", "a list"), str):
            # JSON gives each row a separate list, so stacks cannot be looked up by object identity.
            frames = StackReader(INT64_MAX)
            frames.read(row)
            table = frames.table()
            return self.interner.stack([self.interner.frame(frame) for frame in table.stack(0)])
        if label not in row:
            return -1
        text = row.text(label)
        if text not in self._labels:
            self._labels[text] = self.interner.stack(
                [self.interner.frame(Frame("<rows>", text, 0))]
            )
        return self._labels[text]


def _read(path: str, rows: Iterable[object]) -> Recording:
    reader = _Reader(path)
    for number, row in enumerate(rows):
        reader.take(number, row)
    used = {device: blocks for device, blocks in reader.devices.items() if blocks.n_requests}
    if not used:
        expected = "expected a row of allocations: action, size, and addr or id"
        raise RecordingError(path, f"holds no row that allocates, {expected}")
    table = reader.interner.table()
    traces = [
        blocks.trace(device, table, has_times=reader.timed[device])
        for device, blocks in sorted(used.items())
    ]
    return Recording(
        path=path,
        layout=ROWS,
        devices=tuple(traces),
        frame_table=table,
        notes=tuple(_notes(reader)),
    )


def _notes(reader: _Reader) -> Iterator[str]:
    yield (
        "rows of allocations and frees: no pool or segment is recorded, so requests are replayed "
        "by size, and their addresses are compared with nothing"
    )
    for device, blocks in sorted(reader.devices.items()):
        if blocks.n_before:
            count = "a block" if blocks.n_before == 1 else f"{blocks.n_before:,} blocks"
            yield f"device {device}: {count} freed and never allocated: requested first"
        if blocks.n_lost:
            yield (
                f"device {device}: {blocks.n_lost:,} blocks are allocated or freed twice, and what "
                "lies between is taken for granted"
            )
    if reader.n_passed_over:
        yield f"{reader.n_passed_over:,} rows of other actions are passed over"
    if reader.n_missed:
        yield f"{reader.n_missed:,} frees of blocks that are not known are passed over"


def _column(row: Fields | dict[str, object], part: str) -> str:
    return next((name for name in _ALIASES[part] if name in row), _ALIASES[part][0])


def _integer(row: Fields, column: str, high: int) -> int:
    value = row.value(column, "a number")
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value, 0) if value.startswith("0x") else int(value)
    if type(value) is not int or not 0 <= value <= high:
        row.wrong(column, value, f"a whole number from 0 to {high}")
    return value


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
"""Categories of PyTorch's memory timeline; the rows contain indices into this list."""

_Row = tuple[int, int, int, int]


def is_timeline(value: object) -> bool:
    """Return True if a JSON value is a memory timeline of PyTorch's profiler.

    The value has raw rows, or the bytes of each category over time.
    """
    match value:
        # [times, list of the bytes of each category at each time]
        case [[int() | float(), *_] as times, [[*_], *_] as sums] if len(times) == len(sums):
            return True
    return _begins_with_row(value)


def _begins_with_row(value: object) -> bool:
    match value:
        case [[int(), int(), int(), int()], *_]:
            return True
    return False


def read_timeline(path: str, value: list[object]) -> Recording:
    """Return the recording in a memory timeline of raw rows.

    Raises RecordingError for a timeline with only the bytes of each category.
    """
    if not _begins_with_row(value):
        _refuse_sums(path, value)
    interner = FrameInterner()
    frames = [interner.stack([interner.frame(Frame("<timeline>", what, 0))]) for what in CATEGORIES]
    blocks = RequestColumns()
    left: tuple[int, int] | None = None
    for number, (time, action, moved, category) in enumerate(_rows(path, value)):
        if action == _VERSION:
            # A pair of rows: free in the old category, request in the new category.
            if left is None:
                left = -moved, category
            elif left[0] == moved:
                blocks.change_group(moved, left[1], category)
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
    most = max(
        (
            sum(size for size in row if type(size) is int and 0 <= size <= INT64_MAX)
            for row in sums
            if isinstance(row, list)
        ),
        default=0,
    )
    raise RecordingError(
        path,
        f"is a memory timeline as sums by category ({len(sums)} moments, at most "
        f"{format_size(most)} in all), which holds no single request; export the rows: "
        "export_memory_timeline('timeline.raw.json.gz')",
    )
