"""Read requests and frees from traces of PyTorch's profiler (Kineto, Chrome format).

Events are sorted by (ts, Ev Idx), which is the order of the allocator's calls.  Their bytes are
sizes of blocks, after rounding.  A trace contains no streams, pools or segments.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from allocsim.errors import RecordingError
from allocsim.recording.fields import INT32_MAX, INT64_MAX, UINT64_MAX, Fields, describe
from allocsim.recording.frames import Frame, FrameInterner
from allocsim.recording.provenance import Annotation, Provenance
from allocsim.recording.recording import PROFILER_TRACE, Recording
from allocsim.recording.requests.builders import CallStacks, RequestColumns
from allocsim.units import format_size

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb'\s*\[\s*\{[^{}]{0,2000}"ph"\s*:\s*"')
_BETWEEN = re.compile(r"[\s,]*")
_COLON = re.compile(r"\s*:\s*")
_MEMORY, _OOM = "[memory]", "[OutOfMemory]"
_MODELLED = {1: "CUDA", 6: "HIP"}
_OTHERS = {0: "CPU", 12: "XPU", 13: "MPS", 15: "HPU", 19: "MTIA", 20: "a backend of its own"}
"""Names of the device types (c10::DeviceType) that are not replayed; 20 is PrivateUse1, used for
NPU, MUSA, MLU and others."""
_MOST_DEVICES = 1024
_DEEPEST = "is nested too deeply to be a profiler trace"
_BEFORE = Frame("<before>", "held when the trace began", 0)


_Event = dict[str, Any]


class _Moved(NamedTuple):
    # An event named "[memory]".  ts: time in microseconds.  order: sorts events of equal ts.
    # moved: bytes of the block, negative for a free.  thread: ids of process and thread.

    ts: float
    order: int
    device: int
    moved: int
    address: int | None
    allocated: int | None
    reserved: int | None
    thread: tuple[str, str]

    @property
    def process(self) -> str:
        return self.thread[0]


@dataclass(slots=True)
class _Read:
    moved: list[_Moved]
    calls: CallStacks
    by_type: dict[int, int]  # number of `[memory]` events, also those of devices that are left out
    cards: dict[int, tuple[str, int]]  # name and bytes of each GPU
    annotations: list[Annotation]
    n_oom: int = 0


def is_profiler_trace(data: bytes) -> bool:
    """Return True if a JSON text is a profiler's trace.

    A trace is a dictionary with the key traceEvents, or a list of events.
    """
    return _EVENTS.search(data) is not None or _BARE.match(data) is not None


def read_profiler_trace(path: str, data: bytes) -> Recording:
    """Return the recording of the requests and frees in a profiler's trace.

    Raises RecordingError if it has none.
    """
    read = _Read([], CallStacks(), {}, {}, [])
    try:
        for number, event in enumerate(_events(path, data.decode("utf-8-sig", "replace"), read)):
            _take(path, number, event, read)
    except RecursionError:
        raise RecordingError(path, _DEEPEST) from None
    _refuse_without_memory(path, read)
    read.moved.sort(key=lambda each: each[:2])
    interner = FrameInterner()
    before = interner.stack([interner.frame(_BEFORE)])
    notes = [
        "a profiler's trace: its sizes are those of blocks and not of requests, and it has no "
        "streams, pools or segments, so requests are replayed by size on one stream, and their "
        "addresses are compared with nothing"
    ]
    traces = []
    stacks = read.calls.stacks([(each.thread, each.ts) for each in read.moved], interner)
    table = interner.table()
    numbers = _device_numbers(read.moved)
    if len(numbers) > _MOST_DEVICES:
        what = f"holds the events of {len(numbers):,} devices of processes"
        raise RecordingError(path, f"{what}; expected up to {_MOST_DEVICES:,}")
    notes += _several_processes(numbers)
    by_device: dict[int, list[tuple[_Moved, int]]] = {number: [] for number in numbers.values()}
    for each, stack in zip(read.moved, stacks, strict=True):
        by_device[numbers[each.process, each.device]].append((each, stack))
    for device, rows in sorted(by_device.items()):
        blocks = _blocks(rows)
        notes += _notes(device, [each for each, _ in rows], blocks, before)
        traces.append(blocks.trace(device, table, has_times=True, before=before))
    notes += _left_out(read)
    return Recording(
        path=path,
        layout=PROFILER_TRACE,
        devices=tuple(traces),
        frame_table=table,
        annotations=tuple(sorted(read.annotations, key=lambda mark: mark.time_us)),
        provenance=_provenance(read),
        notes=tuple(notes),
        processes=tuple(dict.fromkeys(process for process, _ in numbers)),
    )


def _device_numbers(moved: list[_Moved]) -> dict[tuple[str, int], int]:
    """Return a dictionary from each pair (process, device) of the trace to a device index."""
    pairs = list(dict.fromkeys((each.process, each.device) for each in moved))
    free = 1 + max(device for _, device in pairs)
    numbers: dict[tuple[str, int], int] = {}
    taken: set[int] = set()
    for process, device in pairs:
        number = device
        if number in taken:
            number, free = free, free + 1
        taken.add(number)
        numbers[process, device] = number
    return numbers


def _several_processes(numbers: dict[tuple[str, int], int]) -> Iterator[str]:
    processes = list(dict.fromkeys(process for process, _ in numbers))
    if len(processes) == 1:
        return
    moved = [
        f"device {device} of process {process or 'without a number'} is device {number} here"
        for (process, device), number in numbers.items()
        if number != device
    ]
    yield (
        f"the trace holds the events of {len(processes)} processes "
        f"({', '.join(process or 'one without a number' for process in processes[:8])}): each has "
        "an allocator of its own and is replayed by itself" + "".join(f"; {each}" for each in moved)
    )


def _blocks(rows: list[tuple[_Moved, int]]) -> RequestColumns:
    blocks = RequestColumns()
    for each, stack in rows:
        time = int(each.ts)
        if each.moved > 0:
            blocks.alloc(each.moved, each.address, time=time, stack=stack)
        elif each.moved < 0:
            blocks.free(-each.moved, each.address, time=time, stack=stack)
    return blocks


# -- the text ------------------------------------------------------------------------------


def _events(path: str, text: str, read: _Read) -> Iterator[_Event]:
    decode = json.JSONDecoder().raw_decode
    at = _skip(text, 0)
    try:
        if text[at] == "[":
            yield from _list(path, text, at)
            return
        at = _skip(text, at + 1)
        while text[at] != "}":
            key, at = decode(text, at)
            colon = _COLON.match(text, at)
            if colon is None:
                raise ValueError("a name without a value")
            at = colon.end()
            if key == "traceEvents" and text[at] == "[":
                at = yield from _list(path, text, at)
            else:
                value, at = decode(text, at)
                if key == "deviceProperties":
                    _take_cards(value, read)
            at = _skip(text, at)
    except (IndexError, ValueError) as error:
        reason = "it is cut short" if isinstance(error, IndexError) else str(error)[:100]
        raise RecordingError(
            path, f"is a profiler trace that is no sound JSON ({ascii(reason)[1:-1]})"
        ) from None


def _list(path: str, text: str, at: int) -> Generator[_Event, None, int]:
    decode = json.JSONDecoder().raw_decode
    at = _skip(text, at + 1)
    number = 0
    while text[at] != "]":
        event, at = decode(text, at)
        if not isinstance(event, dict):
            raise RecordingError(path, f"has {describe(event)} for the event {number}")
        yield event
        at = _skip(text, at)
        number += 1
    return at + 1


def _skip(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()


# -- one event -----------------------------------------------------------------------------


def _take(path: str, number: int, event: _Event, read: _Read) -> None:
    name = event.get("name")
    if event.get("cat") == "user_annotation":
        read.annotations += _marks(event)
    elif event.get("ph") == "X":
        read.calls.add(event)
    elif name == _OOM:
        read.n_oom += 1
    elif name == _MEMORY:
        _take_memory(Fields(path, f"the [memory] event {number}", event), read)


def _marks(event: _Event) -> Iterator[Annotation]:
    name, begin, lasts = event.get("name"), _time(event.get("ts")), _time(event.get("dur"))
    if not isinstance(name, str) or begin is None or lasts is None:
        return
    yield Annotation(name[:200], "START", -1, int(begin))
    yield Annotation(name[:200], "END", -1, int(begin + lasts))


def _time(value: object) -> float | None:
    if isinstance(value, int | float) and 0 <= value <= INT64_MAX // 2:
        return value
    return None


def _take_memory(event: Fields, read: _Read) -> None:
    args = Fields(event.path, f"{event.where}'s args", event.value("args", "a dictionary"))
    kind = args.integer("Device Type", 0, INT32_MAX)
    read.by_type[kind] = read.by_type.get(kind, 0) + 1
    if kind not in _MODELLED:
        return
    ts = event.number("ts")
    if not (math.isfinite(ts) and 0 <= ts <= INT64_MAX):
        event.wrong("ts", ts, "microseconds from 0")
    has_index = "Ev Idx" in args
    thread = (_text(event, "pid"), _text(event, "tid"))
    read.moved.append(
        _Moved(
            ts,
            args.integer("Ev Idx", 0, INT64_MAX) if has_index else len(read.moved),
            args.integer("Device Id", 0, 1023),
            args.integer("Bytes", -INT64_MAX, INT64_MAX),
            args.integer("Addr", 0, UINT64_MAX) if "Addr" in args else None,
            args.integer("Total Allocated", 0, INT64_MAX) if "Total Allocated" in args else None,
            args.integer("Total Reserved", 0, INT64_MAX) if "Total Reserved" in args else None,
            thread,
        )
    )


def _text(fields: Fields, name: str) -> str:
    return str(fields.value(name, "a number"))[:40] if name in fields else ""


def _take_cards(value: object, read: _Read) -> None:
    for card in value if isinstance(value, list) else ():
        match card:
            case {"id": int(number), "totalGlobalMem": int(size)} if 0 < size <= INT64_MAX:
                read.cards[number] = (str(card.get("name", ""))[:100], size)


# -- what it says and what it lacks ----------------------------------------------------------


def _refuse_without_memory(path: str, read: _Read) -> None:
    if read.moved:
        return
    if not read.by_type:
        raise RecordingError(
            path,
            "is a profiler trace without [memory] events; record with profile_memory=True, or "
            "the whole history with torch.cuda.memory._record_memory_history()",
        )
    kinds = ", ".join(_OTHERS.get(kind, f"device type {kind}") for kind in sorted(read.by_type))
    raise RecordingError(
        path,
        f"is a profiler trace whose [memory] events are all of {kinds}; expected some of CUDA or "
        "HIP, whose caching allocator is what is modelled",
    )


def _notes(device: int, moved: list[_Moved], blocks: RequestColumns, before: int) -> Iterator[str]:
    first = moved[0]
    held = 0
    if first.allocated is not None:
        held = first.allocated - first.moved - blocks.bytes_before
    if held > 0:
        held_text = format_size(held)
    if blocks.n_before:
        count = "a block" if blocks.n_before == 1 else f"{blocks.n_before:,} blocks"
        yield (
            f"device {device}: {count} ({format_size(blocks.bytes_before)}) freed in the trace "
            "were there before it began: they are requested first"
        )
    if held > 0:
        yield (
            f"device {device}: {held_text} more were allocated before and are never freed in it: "
            "they are replayed as few blocks, requested first"
        )
        blocks.add_older_blocks(held, before)
    if any(each.address is None for each in moved):
        yield (
            f"device {device}: its frees name no block: each is taken for one of the last "
            "requested block of its size"
        )
    if blocks.n_lost:
        yield (
            f"device {device}: {blocks.n_lost:,} events are missing: a block was requested "
            "twice or freed twice, and what lies between is taken for granted"
        )
    totals = [e for e in moved if e.allocated is not None and e.reserved is not None]
    if totals:
        allocated = max(each.allocated or 0 for each in totals)
        reserved = max(each.reserved or 0 for each in totals)
        yield (
            f"device {device}: the trace itself counts up to {format_size(allocated)} allocated "
            f"and {format_size(reserved)} reserved"
        )


def _left_out(read: _Read) -> Iterator[str]:
    others = {kind: n for kind, n in read.by_type.items() if kind not in (*_MODELLED, 0)}
    for kind, count in sorted(others.items()):
        what = _OTHERS.get(kind, f"device type {kind}")
        yield f"{count:,} [memory] events of {what} are left out"
    if read.n_oom:
        errors = "an out-of-memory error" if read.n_oom == 1 else f"{read.n_oom:,} such errors"
        yield f"the trace has {errors} (OutOfMemory), whose requests are no part of the replay"


def _provenance(read: _Read) -> Provenance | None:
    cards = {read.cards.get(each.device) for each in read.moved}
    card = cards.pop() if len(cards) == 1 else None
    return None if card is None else Provenance(device_name=card[0], device_memory=card[1])
