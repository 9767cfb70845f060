"""Preparation of the devices of a recording: release, settings and state before the first entry.

The user's choice has precedence over recorded facts, and recorded facts over guesses from the
file's layout.  The last result for each recording is cached.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, keep_pages
from allocsim.core import RELEASES as MODELLED
from allocsim.core import CachingAllocator, find_release, parse_conf
from allocsim.errors import ConfigError, RecordingError
from allocsim.recording import (
    Action,
    Mark,
    MarkKind,
    Recording,
    Rewound,
    Trace,
    refuse_overlaps,
    refuse_unsound,
)
from allocsim.replaying.baseline import device_of, parting_of, with_learned_start
from allocsim.replaying.notes import known_notes
from allocsim.replaying.prepared import Prepared
from allocsim.simulation import (
    DeviceRun,
    Fidelity,
    Hints,
    PeakState,
    Setting,
    StepKind,
    Steps,
    Timeline,
    driver_calls_of,
)
from allocsim.state import SegmentState
from allocsim.units import MIB

_Key = tuple[int | None, str | None, Hints]
"""Arguments of `prepare` other than the recording: (device, torch_version, hints)."""

_LAST: WeakKeyDictionary[Recording, tuple[_Key, tuple[Prepared, ...]]] = WeakKeyDictionary()
"""Last result of `prepare` for each recording, with its arguments."""
_SOUND: WeakKeyDictionary[Recording, dict[int, Rewound]] = WeakKeyDictionary()
"""Cache of the state of each device before its first entry, for recordings of several devices."""
_UNCOMPARED: WeakKeyDictionary[Recording, dict[int, Rewound]] = WeakKeyDictionary()
"""Dictionary from device to start state, for devices not yet searched for overlapping blocks."""


def prepare(
    recording: Recording,
    device: int | None = None,
    torch_version: str | None = None,
    *,
    hints: Hints | None = None,
    compares_blocks: bool = True,
) -> tuple[Prepared, ...]:
    """Return every device of `recording`, or only `device`, prepared for replays.

    torch_version: PyTorch version to model; None to choose it from the recording.
    compares_blocks: True to search for overlapping blocks, which takes a fifth of the time of a
        replay.  False if the caller calls `compare_blocks` after a replay; an exact replay makes
        the search unnecessary.
    """
    keep_pages()
    key = device, torch_version, hints or Hints()
    last = _LAST.get(recording)
    if last is not None and last[0] == key:
        if compares_blocks:
            compare_blocks(recording)
        return last[1]
    found = _from_empty(recording, *key)
    if torch_version is not None and not can_be_of(recording, found[0].release.version):
        # Infer the plan under a release that can have written the recording; replay it under the
        # requested one.
        written = prepare(recording, device, hints=hints)
        found = [
            replace(
                each,
                written=own,
                start=own.start,
                recorded=own.recorded,
                config=own.recorded.config(each.release),
                marks=own.marks,
            )
            for each, own in zip(found, written, strict=True)
        ]
    else:
        starts = _before_first(recording)
        if compares_blocks:
            compare_blocks(recording)
        if not recording.is_requests:  # a file of requests requests the initial blocks itself
            found = [replace(each, start=_start_of(starts, each, recording)) for each in found]
            found = [with_settings_of_vllm(with_learned_start(each)) for each in found]
    # One result for each recording: a second key is rare, and plans of long recordings are large.
    _LAST[recording] = key, tuple(found)
    return tuple(found)


def _before_first(recording: Recording) -> dict[int, Rewound]:
    # Several devices are often prepared one by one, so their common result is kept.
    found = _SOUND.get(recording)
    if found is None:
        found = refuse_unsound(recording)
        _UNCOMPARED[recording] = dict(found)
        if len(recording.devices) > 1:
            _SOUND[recording] = found
    return found


def compare_blocks(recording: Recording, exact: Container[int] = ()) -> None:
    """Raise RecordingError if blocks of a prepared recording overlap; compare each device once.

    exact: devices whose replay at the recorded addresses equals the recording.  If their segments
        never overlap, their blocks do not overlap either and are not compared.
    """
    starts = _UNCOMPARED.get(recording, {})
    for device, start in list(starts.items()):
        if device not in exact or start.has_overlaps:
            refuse_overlaps(recording, recording.device(device), start)
        del starts[device]


def prepare_made(recording: Recording, device: int | None = None) -> tuple[Prepared, ...]:
    """Prepare a recording that the simulated allocator made, without a check for contradictions."""
    found = _from_empty(recording, device, None, Hints())
    return tuple(replace(each, is_made=True) for each in found)


def _from_empty(
    recording: Recording, device: int | None, torch_version: str | None, hints: Hints
) -> list[Prepared]:
    possible, note = choose_releases(recording, torch_version)
    release = MODELLED[possible[-1]]
    for _, changed in hints.settings:
        parse_conf(changed, release)  # raises ConfigError to the user
    conf = _conf_of(recording) if hints.first_conf is None else hints.first_conf
    try:
        config = parse_conf(conf, release)
    except ConfigError as error:
        what = f"its settings {conf[:80]!r} are refused by release {release.version}: {error}"
        raise RecordingError(recording.path, what) from None
    traces = recording.devices if device is None else (recording.device(device),)
    return [
        Prepared(
            path=recording.path,
            trace=trace,
            release=release,
            release_note=note,
            recorded=Setting(conf),
            config=config,
            has_settings=_has_settings(recording, hints),
            start=(),
            provenance=recording.provenance,
            releases=possible,
            hints=hints,
            marks=hints.marks(trace),
            is_requests=recording.is_requests,
            file_notes=recording.notes,
        )
        for trace in traces
    ]


def _has_settings(recording: Recording, hints: Hints) -> bool:
    made = recording.provenance
    is_noted = made is not None and made.conf_at_start is not None
    return is_noted or recording.settings is not None or hints.first_conf is not None


def _conf_of(recording: Recording) -> str:
    made = recording.provenance
    if made is not None and made.conf_at_start is not None:
        return made.conf_at_start
    return recording.settings.conf if recording.settings is not None else ""


def _start_of(
    starts: Mapping[int, Rewound], prepared: Prepared, recording: Recording
) -> tuple[SegmentState, ...]:
    recorded, trace = recording.settings, prepared.trace
    start = starts.get(trace.device) or Rewound(trace)
    try:
        return start.state(
            rounded=prepared.config.round_size,
            max_split_size=recorded.max_split_size if recorded is not None else None,
        )
    except RecordingError as error:
        what = str(error).partition(": ")[2].removeprefix(f"entry {error.entry}: ")
        raise RecordingError(recording.path, what, entry=error.entry) from None


def choose_releases(recording: Recording, torch_version: str | None) -> tuple[tuple[str, ...], str]:
    """Return the PyTorch releases that can have written a recording, and the reason for the choice.

    The releases are in ascending order, and a replay models the newest.  The user's `torch_version`
    has precedence, then the release noted by `allocsim record`, then the layout of the file.
    """
    if torch_version is not None:
        version = find_release(torch_version).version
        return (version,), f"PyTorch {version}: as requested"
    made_by = recording.provenance.release if recording.provenance is not None else ""
    if made_by in MODELLED:
        return (made_by,), f"PyTorch {made_by}: as recorded"
    possible = tuple(version for version in recording.releases if version in MODELLED)
    # A file of requests does not have the layout of a release.
    if not possible or recording.is_requests:
        newest = list(MODELLED)[-1]
        return tuple(MODELLED), f"PyTorch {newest}: the newest, since the file names no release"
    newest = possible[-1]
    if len(possible) == 1:
        return possible, f"PyTorch {newest}: no other release writes this layout"
    return (
        possible,
        f"PyTorch {newest}: the newest release that writes this layout "
        f"({possible[0]} to {possible[-1]})",
    )


def can_be_of(recording: Recording, version: str) -> bool:
    possible, _ = choose_releases(recording, None)
    return version in possible


_SIGNS = {
    Action.SEGMENT_ALLOC: 1,
    Action.SEGMENT_MAP: 1,
    Action.SEGMENT_FREE: -1,
    Action.SEGMENT_UNMAP: -1,
}


def run_as_made(
    prepared: Prepared,
    allocator: CachingAllocator,
    moved: NDArray[np.int64],
    peak: PeakState,
    peak_device_bytes: int,
) -> DeviceRun:
    """Return the results that a replay would have, for a recording made by a simulated allocator.

    allocator: the simulated allocator that made the recording, after the last request.
    moved: change of allocated bytes at each request and free, in order.
    """
    trace, steps = prepared.trace, prepared.plan.steps
    memory, notes = device_of(prepared)
    of_step = np.zeros(len(steps), dtype=np.int64)
    of_step[any_of(steps.kind, (StepKind.ALLOC, StepKind.FREE))] = moved
    allocations, segments = trace.count(Action.ALLOC), len(trace.segments)
    return DeviceRun(
        device=trace.device,
        entries=len(trace),
        device_memory=memory,
        peak_device_bytes=peak_device_bytes,
        stats=allocator.memory_stats(),
        timeline=Timeline(
            entry=steps.entry,
            allocated=np.cumsum(of_step, out=of_step),
            reserved=_reserved_after_steps(steps, trace),
        ),
        peak=peak,
        ooms=(),
        fidelity=Fidelity(
            allocations=allocations,
            addresses_matched=allocations,
            segments=segments,
            segments_matched=segments,
            entries=len(trace),
            entries_matched=len(trace),
            first_mismatch=None,
        ),
        inferred=(*notes, *known_notes(prepared)),
        stopped_at=None,
        driver_calls=driver_calls_of(allocator.device.calls),
    )


def _reserved_after_steps(steps: Steps, trace: Trace) -> NDArray[np.int64]:
    rows = np.flatnonzero(any_of(trace.action, _SIGNS))
    signs = np.array([_SIGNS[Action(action)] for action in trace.action[rows].tolist()], np.int64)
    at = np.searchsorted(steps.entry, rows)
    # A DICTATE step comes before its segment exists, so it has the value of the step before it.
    kinds = np.append(steps.kind, np.uint8(StepKind.ALLOC))
    while (is_before := kinds[at] == StepKind.DICTATE).any():
        at += is_before
    moved = np.zeros(len(kinds), dtype=np.int64)
    np.add.at(moved, at, signs * trace.size[rows])
    return np.cumsum(moved, out=moved)[:-1]


_WHILE_LOADING = "max_split_size_mb:20"
_AFTER_LOADING = "max_split_size_mb:17592186044415"
_LEAST_UNSPLIT = 20 * MIB


def with_settings_of_vllm(prepared: Prepared) -> Prepared:
    """Return `prepared` with vLLM's change of settings, if a replay then equals the recording.

    vLLM sets another option string (conf) while it loads a model, and a snapshot contains only the
    last one.  Replays find the entry of the change by bisection.
    """
    is_known = prepared.hints.settings or any(m.kind is MarkKind.SETTINGS for m in prepared.marks)
    if is_known or prepared.recorded.conf != _AFTER_LOADING:
        return prepared
    parting = parting_of(prepared)
    if parting is None or parting.entry is None:
        return prepared
    found = parting_of(_changed_at(prepared, None))
    last = len(prepared.trace) if found is None or found.entry is None else found.entry
    changes = _possible_changes(prepared.trace, parting.entry, last)
    low, high = 0, len(changes)
    while low < high:
        middle = (low + high) // 2 if high < len(changes) else high - 1  # the last is most likely
        tried = _changed_at(prepared, changes[middle])
        found = parting_of(tried)
        if found is None:
            return tried
        if found.is_before(last - 1):
            low = middle + 1
        else:
            high = middle
    return prepared


def _possible_changes(trace: Trace, first: int, last: int) -> list[int]:
    # The settings treat smaller requests differently only if their addresses differ too, so the
    # change may be right before a larger request, or before the first difference.
    rows = np.flatnonzero((trace.action == Action.ALLOC) & (trace.size >= _LEAST_UNSPLIT))
    return [*rows[(rows > first) & (rows < last)].tolist(), *([last] if last > first else [])]


def _changed_at(prepared: Prepared, entry: int | None) -> Prepared:
    marks = prepared.marks
    if entry is not None:
        added = Mark(entry, MarkKind.SETTINGS, _AFTER_LOADING)
        marks = tuple(sorted((*marks, added), key=lambda mark: mark.entry))
    first = Setting(_WHILE_LOADING)
    return replace(prepared, recorded=first, config=first.config(prepared.release), marks=marks)
