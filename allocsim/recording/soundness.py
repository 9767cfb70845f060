"""Find the defects of a recording and describe them in sentences for the user.

Equal defects of several entries are reported once, with the number of entries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

import numpy as np

from allocsim._fast_numpy import any_of
from allocsim.errors import RecordingError
from allocsim.recording.live_blocks import never_overlap
from allocsim.recording.recording import RELEASES, Backend, Recording, backend_of, unrounded_until
from allocsim.recording.start_state import Rewound
from allocsim.recording.trace import BLOCK_ACTIONS, Action, Trace, Turn
from allocsim.state import INACTIVE, SegmentState
from allocsim.units import format_size

_CONTRADICTS = "the data contradicts itself and cannot be a recording"
_ALIGNMENT = 512
_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)


@dataclass(frozen=True, slots=True)
class Defect:
    """Contradiction, missing data or peculiarity of a recording.

    severity: "error" if the recording cannot be replayed, else "note".
    text: description for the user.
    entry: index of the entry; None if the defect concerns no single entry.
    device: index of the device; None if the defect concerns the whole file.
    check: name of the check that found it: "contents", "layout", "segments", "overlap",
        "free_without_allocation", "history", "alignment", "clock", "mid_run", "ring", "reader" or
        "backend".
    """

    severity: Literal["note", "error"]
    text: str
    entry: int | None = None
    device: int | None = None
    check: str = "contents"


def find_defects(
    recording: Recording, starts: dict[int, tuple[SegmentState, ...]] | None = None
) -> tuple[Defect, ...]:
    """Return all defects of `recording`, errors first.

    starts: dictionary to fill: it gets, keyed by device index, the segments of each device before
        its first entry.  Devices without entries or with contradictions are left out.
    """
    return _find_defects(recording, {}, {} if starts is None else starts)


def refuse_unsound(recording: Recording) -> dict[int, Rewound]:
    """Raise RecordingError if the recording contradicts itself or cannot be replayed.

    Return a dictionary from device index to the state of the device before its first entry.
    This function does not search for overlapping blocks; `refuse_overlaps` does.
    """
    rewound: dict[int, Rewound] = {}
    _refuse_errors(recording, _find_defects(recording, rewound, {}, compares_blocks=False))
    return rewound


def refuse_overlaps(recording: Recording, trace: Trace, start: Rewound) -> None:
    """Raise RecordingError if an allocation of `trace` overlaps a block that is live at that time.

    start: state of the device of `trace` before its first entry.
    """
    _refuse_errors(recording, filter(None, [_overlap(trace, start.state())]))


def _refuse_errors(recording: Recording, defects: Iterable[Defect]) -> None:
    for defect in defects:
        if defect.severity == "error":
            raise RecordingError(recording.path, defect.text, entry=defect.entry)


def refuse_contradictions(recording: Recording) -> None:
    """Raise RecordingError if the recording contradicts itself."""
    for defect in find_defects(recording):
        if defect.text.startswith(_CONTRADICTS):
            raise RecordingError(recording.path, defect.text, entry=defect.entry)


def _find_defects(
    recording: Recording,
    rewound: dict[int, Rewound],
    starts: dict[int, tuple[SegmentState, ...]],
    *,
    compares_blocks: bool = True,
) -> tuple[Defect, ...]:
    found = list(_about_file(recording))
    unrounded = unrounded_until(recording.releases or RELEASES)
    for trace in recording.devices:
        if recording.is_requests:  # without segments, there is no final state to check
            found += _order(trace)
        else:
            found += _about_device(trace, unrounded, rewound, starts, compares_blocks)
    return tuple(sorted(found, key=lambda defect: defect.severity != "error"))


def _about_file(recording: Recording) -> Iterator[Defect]:
    for note in recording.notes:
        yield Defect("note", note, check="reader")
    if (backend := backend_of(recording)) is not None:
        yield _about_backend(backend)
    if not recording.devices:
        yield Defect("error", "the recording is empty: it holds neither segments nor entries")
    elif not any(len(trace.inputs()) for trace in recording.devices):
        n_segments = sum(len(trace.segments) for trace in recording.devices)
        yield Defect(
            "error",
            f"the recording holds the state only ({n_segments} segments) and no entries of "
            "allocations or frees, so there is nothing to replay; allocsim explain, top, report "
            "and plot segments, sizes or flame show the state; for a history, record with "
            "torch.cuda.memory._record_memory_history(max_entries=1_000_000)",
        )
    if not recording.releases:
        what = "no release of PyTorch writes this mixture of fields"
        yield Defect("note", what, check="layout")


def _about_backend(backend: Backend) -> Defect:
    what = f"the recording is of {backend.name}'s build of PyTorch ({backend.evidence})"
    if backend.is_modelled:
        note = f"{what}: it is replayed as CUDA's; by its source, its allocator {backend.differs}"
        return Defect(
            "note", f"{note}; no recording of one was there to try it on", check="backend"
        )
    return Defect(
        "error",
        f"{what}: its allocator {backend.differs}, which is not modelled, so that a replay would "
        "say nothing true",
        check="backend",
    )


def _about_device(
    trace: Trace,
    unrounded: str | None,
    rewound: dict[int, Rewound],
    starts: dict[int, tuple[SegmentState, ...]],
    compares_blocks: bool,
) -> Iterator[Defect]:
    wrong = islice(_segment_errors(trace), 1)
    broken = [_contradiction(trace, "segments", what) for what in wrong] or list(
        _alignment(trace, unrounded)
    )
    yield from broken
    yield from _order(trace)
    if not len(trace) or any(defect.severity == "error" for defect in broken):
        return
    try:
        rewound[trace.device] = Rewound(trace)
        start = rewound[trace.device].state()
    except RecordingError as error:
        what = str(error).partition(": ")[2].removeprefix(f"entry {error.entry}: ")
        is_free = error.entry is not None and trace.action[error.entry] in _FREES
        check = "free_without_allocation" if is_free else "history"
        yield _contradiction(trace, check, what, error.entry)
        return
    if compares_blocks and (overlap := _overlap(trace, start)) is not None:
        yield overlap
        return
    starts[trace.device] = start
    yield from _about_start(trace, start)


def _note(trace: Trace, check: str, text: str, entry: int | None = None) -> Defect:
    return Defect("note", text, entry, trace.device, check)


def _contradiction(trace: Trace, check: str, what: str, entry: int | None = None) -> Defect:
    text = f"{_CONTRADICTS}: {what}"
    return Defect("error", text, entry, trace.device, check)


def _segment_errors(trace: Trace) -> Iterator[str]:
    if trace.tiles is not None and trace.tiles.are_sound:
        return
    for left, right in pairwise(trace.segments):
        if left.end > right.address:
            yield (
                f"the segment at 0x{right.address:x} lies inside the one at "
                f"0x{left.address:x} of {left.total_size} bytes"
            )
    for segment in trace.segments:
        at = segment.address
        for block in segment.blocks:
            if block.address != at or not block.size:
                yield (
                    f"in the segment at 0x{segment.address:x} a block of {block.size} bytes is "
                    f"at 0x{block.address:x}, expected one at 0x{at:x}"
                )
            at += block.size
        if at != segment.end:
            yield (
                f"the blocks of the segment at 0x{segment.address:x} hold "
                f"{at - segment.address} bytes, its size is {segment.total_size}"
            )
    if trace.tiles is None:
        yield "a segment reaches beyond the last address that 64 bits can name"


def _alignment(trace: Trace, unrounded: str | None) -> Iterator[Defect]:
    rows = any_of(trace.action, BLOCK_ACTIONS)
    odd = np.flatnonzero(rows & (trace.addr & np.uint64(_ALIGNMENT - 1) != 0))
    if not len(odd):
        return
    entry = int(odd[0])
    text = (
        f"{len(odd)} entries have addresses that are no multiples of {_ALIGNMENT}, the first "
        f"0x{int(trace.addr[entry]):x} at entry {entry}"
    )
    if unrounded is not None:
        text += f"; up to {unrounded} roundup_power2_divisions:1 does that"
        yield _note(trace, "alignment", text, entry)
    else:
        yield _contradiction(trace, "alignment", text, entry)


def _order(trace: Trace) -> Iterator[Defect]:
    if trace.time_us is None:
        return
    back = np.flatnonzero(np.diff(trace.time_us) < 0)
    if len(back):
        entry = int(back[0]) + 1
        text = f"the entries are not in order of time: time_us goes back {len(back)} times, first "
        text += f"at entry {entry}, as after lowering max_entries while recording"
        yield _note(trace, "clock", text, entry)


def _overlap(trace: Trace, start: tuple[SegmentState, ...]) -> Defect | None:
    if never_overlap(trace, start):
        return None
    ends = {b.address: b.address + b.size for s in start for b in s.blocks if b.state != INACTIVE}
    addresses = sorted(ends)
    entries = np.flatnonzero(any_of(trace.action, (Action.ALLOC, Action.FREE_COMPLETED)))
    columns = (trace.action == Action.ALLOC, trace.addr, trace.size)
    rows = zip(entries.tolist(), *(column[entries].tolist() for column in columns), strict=True)
    for index, is_alloc, addr, size in rows:
        if is_alloc:
            at = bisect_left(addresses, addr)
            below = addresses[at - 1] if at else None
            above = addresses[at] if at < len(addresses) else None
            other = below if below is not None and ends[below] > addr else None
            if above is not None and above < addr + size:
                other = above
            if other is not None:
                what = f"{size} bytes are allocated at 0x{addr:x}, over the block at 0x{other:x}"
                return _contradiction(trace, "overlap", what, index)
            addresses.insert(at, addr)
            ends[addr] = addr + size
        else:
            del addresses[bisect_left(addresses, addr)], ends[addr]
    return None


def _about_start(trace: Trace, start: tuple[SegmentState, ...]) -> Iterator[Defect]:
    if not start or not len(trace.inputs()):
        return
    active = sum(segment.active_size for segment in start)
    size = format_size(sum(segment.total_size for segment in start))
    text = f"the recording starts mid-run: {len(start)} segments ({size}) with "
    text += f"{format_size(active)} in use existed before the first entry"
    yield _note(trace, "mid_run", text)
    if len(trace) == 1:
        text = "the recording kept a single entry of a longer run, so there is nothing to replay; "
        text += "record with a larger max_entries"
        yield Defect("error", text, 0, trace.device, "ring")
        return
    lost = _completion_without_request(trace)
    if lost is not None:
        text = f"entry {lost} completes a free that was requested before the first entry: the "
        yield _note(trace, "ring", f"{text}ring of entries may have lost its beginning", lost)


def _completion_without_request(trace: Trace) -> int | None:
    turns = trace.by_address
    follows_request = np.zeros(len(turns), dtype=bool)
    follows_request[1:] = any_of(turns.kind[:-1], (Turn.FREE_REQUESTED,)) & turns.goes_on[:-1]
    lost = turns.entry[any_of(turns.kind, (Turn.FREE_COMPLETED,)) & ~follows_request]
    return int(lost.min()) if len(lost) else None
