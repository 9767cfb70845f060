"""Write the memory of a recording as trace events, the JSON that ui.perfetto.dev opens.

Each device is a process, with counters of bytes after each entry, and a slice for every block and
segment.  Without recorded times, entry n is at microsecond n.
"""

# Lifetimes overlap, but slices of a thread must nest, so blocks are asynchronous slices (phases "b"
# and "e"). The blocks of one line of code share a name, so the viewer shows them in one track.

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from allocsim.analysis.picture import Picture, picture_of
from allocsim.errors import RecordingError
from allocsim.metrics import code_names, turning_rows
from allocsim.recording import Annotation, MarkKind, Recording

_MOST_POINTS = 100_000
_MOST_BLOCKS = 50_000
"""Largest number of blocks per device; the viewer is slow with more than 100 MB of events."""
_SPANS = (MarkKind.STEP, MarkKind.PHASE)
_UNKNOWN = "no stack recorded"

Event = dict[str, Any]
_Times = NDArray[np.int64]


def write_perfetto(recording: Recording, file: BinaryIO) -> None:
    """Write the trace events of every device with entries, one event per line."""
    devices = [trace.device for trace in recording.devices if len(trace)]
    pictures = [picture_of(recording, device=device) for device in devices]
    if not pictures:
        raise RecordingError(recording.path, "holds no entries, and so nothing that took time")
    run = pictures[0].run
    beside = {
        "exporter": "allocsim",
        "recording": recording.path.rsplit("/", 1)[-1],
        "torch_version": run.torch_version,
        "conf": run.conf,
        "time": "microseconds, as recorded" if _has_times(pictures) else "numbers of entries",
        "blocks left out": sum(max(len(p.lives.blocks) - _MOST_BLOCKS, 0) for p in pictures),
    }
    file.write(b'{"displayTimeUnit":"ms",\n"traceEvents":[\n')
    before = b""
    for event in perfetto_events(pictures, recording.annotations):
        file.write(before + json.dumps(event, separators=(",", ":")).encode())
        before = b",\n"
    file.write(b'\n],\n"otherData":' + json.dumps(beside).encode() + b"}\n")


def perfetto_events(
    pictures: Sequence[Picture], annotations: Sequence[Annotation] = ()
) -> Iterator[Event]:
    """Yield the trace events of each device, and the ranges of time that the program named."""
    for picture in pictures:
        process = picture.device_run.device + 1  # process 0 is the idle process
        times = _times(picture)
        yield _named(process, 0, "process_name", f"GPU {picture.device_run.device}")
        for events in (_counters, _segments, _blocks, _errors, _slices_of_marks):
            for event in events(picture, times):
                yield {"pid": process, "tid": 0, **event}
        if picture.trace.time_us is not None:  # annotations have times, but no entries
            own = [each for each in annotations if each.device in (picture.device_run.device, -1)]
            for event in _annotated(own, int(times[0]), int(times[-1])):
                yield {"pid": process, "tid": 0, **event}


def _has_times(pictures: Sequence[Picture]) -> bool:
    return all(picture.trace.time_us is not None for picture in pictures)


def _times(picture: Picture) -> _Times:
    # One more time than entries: the end of blocks that are never freed.
    n, recorded = picture.lives.n_entries, picture.trace.time_us
    if recorded is None:
        return np.arange(n + 1, dtype=np.int64)
    times: _Times = np.maximum.accumulate(recorded[:n])
    return np.append(times, times[-1:] + 1)


def _named(process: int, thread: int, what: str, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "ts": 0, "name": what, "args": {"name": name}}


def _counters(picture: Picture, times: _Times) -> Iterator[Event]:
    for name in ("reserved", "active", "allocated", "requested"):
        values = getattr(picture.curve, name)
        rows = turning_rows(values, _MOST_POINTS)
        for time, value in zip(times[rows].tolist(), values[rows].tolist(), strict=True):
            yield {"ph": "C", "ts": time, "name": name, "args": {"bytes": value}}


def _segments(picture: Picture, times: _Times) -> Iterator[Event]:
    lives = picture.lives.segments
    pools = [*(f"{first}:{second}" for first, second in picture.lives.pools), "default"]
    columns = (lives.address, lives.size, lives.stream, lives.born, lives.died, lives.pool)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for number, (address, size, stream, born, died, pool) in enumerate(rows):
        about = {"address": f"0x{address:x}", "bytes": size, "stream": stream, "pool": pools[pool]}
        yield from _life("segment", f"s{number}", "segments", times[[max(born, 0), died]], about)


def _blocks(picture: Picture, times: _Times) -> Iterator[Event]:
    lives = picture.lives.blocks
    names = [name or _UNKNOWN for name in code_names(picture.trace.frame_table)]
    ends = np.minimum(lives.completed, picture.lives.n_entries)
    rows = np.arange(len(lives))
    if len(rows) > _MOST_BLOCKS:
        held = lives.size.astype(float) * (ends - lives.born)
        rows = np.sort(np.argsort(-held, kind="stable")[:_MOST_BLOCKS])
    columns = (lives.address, lives.size, lives.requested, lives.stream, lives.born, ends,
               lives.stack)  # fmt: skip
    taken = zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True)
    for row, address, size, requested, stream, born, end, stack in taken:
        about = {
            "address": f"0x{address:x}",
            "bytes": size,
            "requested": requested,
            "stream": stream,
            "entry": born,
        }
        yield from _life("block", f"b{row}", names[stack], times[[max(born, 0), end]], about)


def _life(kind: str, number: str, name: str, times: _Times, about: Event) -> Iterator[Event]:
    begin, end = times.tolist()
    same = {"cat": kind, "id": number, "name": name}
    yield {"ph": "b", "ts": begin, **same, "args": about}
    yield {"ph": "e", "ts": end, **same}


def _errors(picture: Picture, times: _Times) -> Iterator[Event]:
    for oom in picture.device_run.ooms:
        about = {"entry": oom.entry, "requested": oom.requested_bytes, "message": oom.message}
        time = int(times[oom.entry])
        yield {"ph": "i", "ts": time, "s": "p", "name": "out of memory", "args": about}


def _slices_of_marks(picture: Picture, times: _Times) -> Iterator[Event]:
    # Steps and phases need not nest, so they are in different threads.
    process = picture.device_run.device + 1
    n = picture.lives.n_entries
    for thread, kind in enumerate(_SPANS, start=1):
        marks = [mark for mark in picture.trace.marks if mark.kind is kind and mark.entry < n]
        if not marks:
            continue
        yield _named(process, thread, "thread_name", f"{kind}s")
        for mark, end in zip(marks, [*(mark.entry for mark in marks[1:]), n], strict=True):
            begin, lasts = int(times[mark.entry]), int(times[end] - times[mark.entry])
            name = f"step {mark.value}" if kind is MarkKind.STEP else str(mark.value)
            yield {"ph": "X", "ts": begin, "dur": lasts, "tid": thread, "name": name}


def _annotated(annotations: Sequence[Annotation], first: int, last: int) -> Iterator[Event]:
    begun: dict[str, list[int]] = {}
    for each in annotations:
        # PyTorch takes some times from another clock, which would stretch the view to years.
        if not first <= each.time_us <= last:
            continue
        if each.stage == "START":
            begun.setdefault(each.name, []).append(each.time_us)
        elif each.stage == "END" and begun.get(each.name):
            about = {"cat": "annotation", "id": f"a{each.name}", "name": each.name}
            yield {"ph": "b", "ts": begun[each.name].pop(), **about}
            yield {"ph": "e", "ts": each.time_us, **about}
