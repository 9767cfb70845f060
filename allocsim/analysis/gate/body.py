"""Part of a recording that `allocsim gate` measures, and the memory held when the part begins.

Some blocks, such as weights, are live from before the measured part to its last request.  The
replay allocates them first, the largest first, so that the measured memory does not depend on the
entries before the part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from allocsim._fast_numpy import any_of
from allocsim.core import SMALL_SIZE
from allocsim.errors import RecordingError
from allocsim.ownership import scene_of_run
from allocsim.recording import Action, Annotation, MarkKind, Trace, start_state, trimmed
from allocsim.replaying import Prepared
from allocsim.simulation import Plan, StepKind, Steps, Timeline
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, BlockState, SegmentState
from allocsim.units import round_up

PLACES = ("step", "phase", "mark", "entry")
"""Kinds of places where the measured part may begin."""

_LASTING = (StepKind.SETTINGS, StepKind.FRACTION)
_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
_APART = 1 << 63  # first address of the blocks from before the part, above all recorded addresses
_SHOWN = 8
_ALL_DEVICES = -1  # device number of an annotation that names no device


@dataclass(frozen=True, slots=True)
class HeldBefore:
    """Requested bytes of the blocks that are live when the measured part begins.

    kept_bytes: bytes of the blocks that are still live at the last request of the part.
    left_bytes: bytes of the blocks that are freed before that request.
    """

    kept_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """Part of a recording to measure, ready for a replay.

    first: index of the history entry at which the part begins.
    trace: entries of the part.
    plan: requests, frees and other calls to replay.
    start: blocks to allocate before the part, because they are live until its last request.
    held: bytes of all blocks that are live when the part begins, including blocks not in `start`.
    """

    first: int
    trace: Trace
    plan: Plan
    start: tuple[SegmentState, ...]
    held: HeldBefore


def body_of(
    prepared: Prepared,
    at: tuple[str, str] | None,
    *,
    counts_held: bool,
    annotations: Sequence[Annotation] = (),
) -> Body:
    """Return the part of a recording from the place `at`, such as ("step", "2"), to the end.

    at: kind of place (`PLACES`), and its name or number; None for the whole recording.
    counts_held: fill `Body.start` with the blocks that are live from before the part to its last
        request; if False, `Body.start` is empty.
    """
    trace = prepared.trace
    first = 0 if at is None else _place(prepared, *at, annotations)
    before = prepared.start
    if first and prepared.is_requests:
        before = _requested_before(trace, first, prepared.config.round_size)
    elif first:
        rounded, limit = prepared.config.round_size, prepared.config.max_split_size
        before = start_state(trace, first, rounded=rounded, max_split_size=limit)
    part = trimmed(trace, first, len(trace))
    asks = np.flatnonzero(part.action == Action.ALLOC)
    last = int(asks[-1]) if len(asks) else 0
    # A block that is freed only after the last request counts as held during the whole part.
    freed = set(part.addr[:last][any_of(part.action[:last], _FREES)].tolist())
    live = [
        (segment, block)
        for segment in before
        for block in segment.blocks
        if block.state != INACTIVE
    ]
    kept = [
        (segment, block)
        for segment, block in live
        if block.state == ALLOCATED and block.address not in freed
    ]
    held = HeldBefore(_asked(kept), _asked(live) - _asked(kept))
    start = _apart(_with_stacks(trace, first, kept)) if counts_held else ()
    return Body(first, part, _plan(prepared, first), start, held)


def _requested_before(
    trace: Trace, first: int, rounded: Callable[[int], int]
) -> tuple[SegmentState, ...]:
    live: dict[int, SegmentState] = {}
    columns = (trace.action, trace.addr, trace.size, trace.stream)
    for action, addr, size, stream in zip(*(c[:first].tolist() for c in columns), strict=True):
        if action == Action.ALLOC:
            held = rounded(size)
            block = BlockState(addr, held, size, ALLOCATED)
            small = held <= SMALL_SIZE
            live[addr] = SegmentState(addr, held, stream, small, DEFAULT_POOL, False, (block,))
        elif action == Action.FREE_COMPLETED:
            live.pop(addr, None)
    return tuple(live.values())


def _asked(blocks: list[tuple[SegmentState, BlockState]]) -> int:
    return sum(block.requested_size or block.size for _, block in blocks)


def _with_stacks(
    trace: Trace, first: int, kept: list[tuple[SegmentState, BlockState]]
) -> list[tuple[SegmentState, BlockState]]:
    asks = np.flatnonzero(trace.action[:first] == Action.ALLOC)
    stacks = dict(zip(trace.addr[asks].tolist(), trace.frames[asks].tolist(), strict=True))
    return [
        (segment, replace(block, frames=stacks.get(block.address, block.frames)))
        for segment, block in kept
    ]


def _apart(kept: list[tuple[SegmentState, BlockState]]) -> tuple[SegmentState, ...]:
    ordered = sorted(kept, key=lambda each: -(each[1].requested_size or each[1].size))
    found, address = [], _APART
    for segment, block in ordered:
        alone = replace(block, address=address, state=ALLOCATED)
        found.append(replace(segment, address=address, total_size=block.size, blocks=(alone,)))
        address += round_up(block.size, 1 << 21)
    return tuple(found)


def _plan(prepared: Prepared, first: int) -> Plan:
    steps = prepared.free_plan.steps
    kept = (steps.entry >= first) | any_of(steps.kind, _LASTING)
    scopes = np.flatnonzero((steps.entry < first) & (steps.kind == StepKind.SCOPE))
    kept[scopes[-1:]] = True
    moved = Steps(
        steps.kind[kept],
        np.maximum(steps.entry[kept] - first, 0),
        steps.addr[kept],
        steps.size[kept],
        steps.stream[kept],
    )
    return replace(prepared.free_plan, steps=moved)


def _place(prepared: Prepared, kind: str, which: str, annotations: Sequence[Annotation]) -> int:
    trace, path = prepared.trace, prepared.path
    if kind not in PLACES:
        raise ValueError(f"{kind!r} is not one of {', '.join(PLACES)}")
    if kind == "entry":
        number = int(which) if which.isascii() and which.isdecimal() else -1
        if not 0 <= number < len(trace):
            raise RecordingError(path, f"there is no entry {which}; expected 0 to {len(trace) - 1}")
        return number
    if kind == "step":
        known = _steps(prepared)
    elif kind == "phase":
        phases = [mark for mark in prepared.marks if mark.kind is MarkKind.PHASE]
        known = {str(mark.value): mark.entry for mark in reversed(phases)}
    else:
        known = _annotated(trace, annotations) | _texts(trace)
    if which not in known:
        names = list(known)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        what = f"it has {', '.join(names[:_SHOWN])}{more}" if names else "it has none"
        raise RecordingError(path, f"there is no {kind} {which}; {what}")
    return min(known[which], len(trace))


def _steps(prepared: Prepared) -> dict[str, int]:
    marks = [mark for mark in prepared.marks if mark.kind is MarkKind.STEP]
    if marks:
        return {str(mark.value): mark.entry for mark in reversed(marks)}
    entries = np.arange(len(prepared.trace), dtype=np.int64)
    nothing = np.zeros(len(entries), dtype=np.int64)
    # Detecting steps from stacks does not use block sizes.
    scene = scene_of_run(prepared.trace, (), Timeline(entries, nothing, nothing))
    starts = scene.step_starts.tolist()
    return dict(zip(map(str, scene.step_numbers.tolist()), starts, strict=True))


def _texts(trace: Trace) -> dict[str, int]:
    if trace.user_metadata is None:
        return {}
    numbers, first = np.unique(trace.user_metadata, return_index=True)
    pairs = zip(numbers.tolist(), first.tolist(), strict=True)
    found = [(entry, trace.texts[number]) for number, entry in pairs if number >= 0]
    return {text: entry for entry, text in sorted(found) if text}


def _annotated(trace: Trace, annotations: Sequence[Annotation]) -> dict[str, int]:
    if trace.time_us is None:
        return {}
    here = (trace.device, _ALL_DEVICES)
    starts = [each for each in annotations if each.stage == "START" and each.device in here]
    times = [each.time_us for each in starts]
    entries = np.searchsorted(trace.time_us, np.array(times, dtype=np.int64)).tolist()
    pairs = zip(reversed(starts), reversed(entries), strict=True)
    return {each.name: entry for each, entry in pairs}
