"""Memory of a device by owner: line of code, stack, module, category, stream or pool.

The bytes of all owners add up exactly to the allocated bytes of the replay.  The modules for flame
graphs and pinned host memory are imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from allocsim._lazy import lazily
from allocsim.analysis.top.answer import Course, Holding, StackAnswers, Top, TopRow, course_of
from allocsim.errors import RecordingError
from allocsim.ownership import (
    BY,
    CATEGORIES,
    Held,
    Moment,
    Scene,
    Whose,
    held_at,
    moment_of,
    moment_of_state,
    scene_of_run,
    scene_of_state,
)
from allocsim.recording import Action, Recording, Trace, refuse_contradictions
from allocsim.replaying import Prepared, prepare, replay_prepared
from allocsim.simulation import DeviceRun, Progress, Run
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top.flame import FlameBox, FlameGraph, flame_of
    from allocsim.editing import Saving
    from allocsim.fitting import Fit

__all__ = [
    "CATEGORIES", "Course", "FlameBox", "FlameGraph", "Holding", "TopRow", "StackAnswers", "Top",
    "flame_of", "answers_of_run", "top", "top_host", "top_of_replay", "top_of_run", "top_of_spill",
    "tops_of_fit",
]  # fmt: skip

__getattr__ = lazily(globals(), {"flame": "FlameBox FlameGraph flame_of"})


def top(
    recording: Recording,
    at: str | int | None = None,
    *,
    by: str = "line",
    frames: int | None = None,
    device: int | None = None,
    torch_version: str | None = None,
    progress: Progress | None = None,
) -> Top:
    """Return the owners of memory at a moment of one device of `recording`.

    at: "peak" for peak allocated memory; "oom" for the last out-of-memory error; "end"; or an entry
        number.  None means "oom" if the recording has an error, else "peak".
    by: kind of owner: "line", "stack", "module", "category", "stream" or "pool".
    frames: number of stack frames in the name of an owner; None for the default: 1 for a line, 8
        for a stack and 3 for a module.
    device: device number; None if only one device is recorded.
    torch_version: PyTorch release to model; None to choose it from the recording.
    progress: callback for the progress of the replay.
    Raises RecordingError if several devices are recorded and `device` is None, or if there is no
    such moment, and ValueError for an unknown `by`.
    """
    if by not in BY:
        raise ValueError(f"by={by!r} is not one of {', '.join(BY)}")
    trace = recording.only_device(device)
    if trace.count(Action.ALLOC):
        (prepared,) = prepare(recording, trace.device, torch_version)
        (device_run,) = replay_prepared((prepared,), progress=progress).devices
        return top_of_run(prepared, device_run, at, by=by, frames=frames)
    refuse_contradictions(recording)
    return top_of_state(recording.path, trace, at, by=by, frames=frames)


def top_of_run(
    prepared: Prepared,
    device_run: DeviceRun,
    at: str | int | None = None,
    *,
    by: str = "line",
    frames: int | None = None,
    since: int = -1,
    scene: Scene | None = None,
) -> Top:
    answers = answers_of_run(
        prepared, device_run, at, bys=(by,), frames=frames, since=since, scene=scene
    )
    return answers.tops[0]


def answers_of_run(
    prepared: Prepared,
    device_run: DeviceRun,
    at: str | int | None = None,
    *,
    bys: Sequence[str] = ("line", "category"),
    frames: int | None = None,
    since: int = -1,
    scene: Scene | None = None,
) -> StackAnswers:
    """Return the owners of memory at a moment of a finished replay, for several kinds of owner.

    prepared, device_run: device of the recording, and its replay.
    at: "peak", "oom", "end" or an entry number; None for "oom" if there is an error, else "peak".
    bys: kinds of owner, such as "line" and "category"; the results have the same order.
    frames: number of stack frames in the name of an owner; None for the default of `top`.
    since: count only blocks requested at this entry or later; -1 counts all.
    scene: blocks of the replay, as `scene_of_run` returns them; None to compute them here.
    """
    trace = prepared.trace
    scene = scene or scene_of_run(trace, prepared.start, device_run.timeline)
    moment = moment_of(prepared.path, trace, device_run, scene, at)
    notes = []
    if device_run.fidelity is not None and not device_run.fidelity.is_exact:
        notes.append(f"the replay differs from the recording: {device_run.fidelity.first_mismatch}")
    n_entries = len(trace) if device_run.stopped_at is None else device_run.stopped_at + 1
    held = held_at(scene, trace, moment.entry or 0, since)
    tops = tuple(
        _top(prepared.path, trace, scene, held, moment, by=by, frames=frames, notes=notes)
        for by in bys
    )
    return StackAnswers(tops, course_of(scene, n_entries), scene)


def top_of_state(
    path: str, trace: Trace, at: str | int | None = None, *, by: str, frames: int | None = None
) -> Top:
    moment = moment_of_state(path, at)
    scene = scene_of_state(trace)
    notes = ["the recording holds only a state: categories are inferred from stacks alone"]
    held = held_at(scene, trace, -1)
    return _top(path, trace, scene, held, moment, by=by, frames=frames, notes=notes)


def top_host(
    path: str,
    trace: Trace,
    at: str | int | None = None,
    *,
    by: str = "line",
    frames: int | None = None,
) -> Top:
    """Return the owners of the pinned host memory that the program used at a moment.

    at: "peak" for the most bytes in use, "end", or an entry number; None means "peak".
    by: kind of owner: "line", "stack", "module", "category", "stream" or "pool".
    frames: number of stack frames in the name of an owner; None for the default of `top`.
    """
    from allocsim.host import follow, state_after  # noqa: PLC0415  (slow; rarely needed)

    if at in (None, "peak"):
        entry, what = follow(trace).peak_in_use.entry, "peak"
    else:
        entry, what = _host_moment(path, len(trace) - 1, at)
    answer = top_of_state(path, state_after(trace, entry), by=by, frames=frames)
    totals = follow(trace, entry + 1).end
    notes = (
        f"{format_size(totals.pinned)} were pinned: {format_size(totals.in_use)} in use, "
        f"{format_size(totals.waiting)} freed and waiting, {format_size(totals.cached)} cached",
        "sizes are those of blocks, mostly rounded up to a power of two",
    )
    return replace(answer, at=Moment(max(entry, 0), what), notes=notes)


def _host_moment(path: str, last: int, at: str | int | None) -> tuple[int, str]:
    if at == "end":
        return last, "end"
    if not isinstance(at, int):
        raise RecordingError(path, f"pinned memory has no moment {at!r}; expected peak or end")
    if not 0 <= at <= last:
        raise RecordingError(path, f"entry {at} does not exist; the last entry is {last}")
    return at, "entry"


def _top(
    path: str,
    trace: Trace,
    scene: Scene,
    held: Held,
    moment: Moment,
    *,
    by: str,
    frames: int | None,
    notes: Sequence[str],
) -> Top:
    rows, sizes, blocks = held.rows, held.sizes, scene.blocks
    pending = blocks.pending(-1 if moment.entry is None else moment.entry)
    silent = rows[scene.is_before[rows] & (blocks.stack[rows] < 0)]
    if len(silent) and scene.has_lives:
        size = format_size(int(blocks.size[silent].sum()))
        notes = [*notes, f"{size} are from before the recording and have no stack"]
    owners: dict[str, list[int]] = {}
    stacks: dict[tuple[Whose, str], list[int]] = {}
    for index, whose in enumerate(held.whose):
        owners.setdefault(held.name(by, index, frames), []).append(index)
        stacks.setdefault((whose, held.category(index)), []).append(index)
    found = [_row(held, sizes, owner, members, by) for owner, members in owners.items()]
    holdings = [
        Holding(
            frames=whose.stack,
            silent=whose.silent,
            category=category,
            bytes=sum(sizes[index] for index in members),
            blocks=len(members),
        )
        for (whose, category), members in stacks.items()
    ]
    categories = _sums(map(held.category, range(len(held))), sizes)
    return Top(
        path=path,
        device=trace.device,
        at=moment,
        by=by,
        allocated_bytes=sum(sizes),
        blocks=len(rows),
        pending_bytes=int(blocks.size[pending].sum()),
        pending_blocks=len(pending),
        rows=tuple(sorted(found, key=lambda row: (-row.bytes, row.owner))),
        categories=categories,
        holdings=tuple(sorted(holdings, key=lambda holding: -holding.bytes)),
        notes=tuple(notes),
        savings=_savings(categories, moment),
    )


def _savings(categories: dict[str, int], moment: Moment) -> tuple[Saving, ...]:
    if moment.what != "oom":
        return ()
    from allocsim.editing import savings_of  # noqa: PLC0415  (slow; rarely needed)

    return savings_of(categories, moment.phase)


def _row(held: Held, sizes: Sequence[int], owner: str, members: Sequence[int], by: str) -> TopRow:
    own = [sizes[index] for index in members]
    categories = _sums(map(held.category, members), own)
    lines = _sums(map(held.part if by == "category" else held.line, members), own)
    reasons = _sums(map(held.reason, members), own) if by == "category" else {}
    return TopRow(
        owner=owner,
        category=next(iter(categories)),
        bytes=sum(own),
        blocks=len(own),
        largest_bytes=max(own),
        categories=categories,
        where=next(iter(lines)),
        reason="; or ".join(reasons),
    )


def _sums(names: Iterable[str], sizes: Sequence[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, size in zip(names, sizes, strict=True):
        found[name] = found.get(name, 0) + size
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def top_of_replay(devices: Sequence[Prepared], run: Run) -> Top | None:
    """Return the lines of code that hold memory at the out-of-memory error, or else at the peak.

    Of several devices, choose a device with an error, or else the device with the highest peak.
    Return None if the settings differ from the recorded ones, or if nothing was allocated.
    """
    pairs = [
        (prepared, device_run)
        for prepared, device_run in zip(devices, run.devices, strict=True)
        if device_run.fidelity is not None and device_run.peak_allocated_bytes
    ]
    if not pairs:
        return None
    prepared, device_run = max(
        pairs, key=lambda pair: (bool(pair[1].ooms), pair[1].peak_allocated_bytes)
    )
    return top_of_run(prepared, device_run)


def top_of_spill(
    devices: Sequence[Prepared], runs: Sequence[DeviceRun], by: str = "line"
) -> Top | None:
    """Return the owners of the blocks requested since the driver began to use host memory.

    The driver moves memory to the host when the card is full.  The owners are for the moment with
    the most memory on the host.
    Return None if nothing was moved, or if this moment is before the first entry.
    """
    pairs = [
        (device_run.spill.most_bytes, prepared, device_run, device_run.spill)
        for prepared, device_run in zip(devices, runs, strict=True)
        if device_run.spill is not None and device_run.spill.began is not None
    ]
    if not pairs:
        return None
    _, prepared, device_run, spill = max(pairs, key=lambda pair: pair[0])
    if spill.worst < 0:
        return None
    return top_of_run(prepared, device_run, spill.worst, by=by, since=spill.began or 0)


def tops_of_fit(found: Fit) -> tuple[Top, Top | None, Top | None]:
    """Return the memory by category at up to three moments of a run that `fit` simulated.

    The first result is for the peak.  The second is for the entry at which the driver had moved
    most memory to the host; None if it moved none.  The third is for the failed request; None if
    none failed.
    """
    ran, failure = found.ran, found.failure
    lives = None if ran.lives is None else ran.lives()
    scene = scene_of_run(ran.prepared.trace, ran.prepared.start, ran.device_run.timeline, lives)
    top_at = partial(top_of_run, ran.prepared, ran.device_run, by="category", scene=scene)
    peak = top_at(ran.busiest)
    spilled = failed = None
    if found.unlimited is not None and found.lent is not None:
        spilled = top_of_spill([found.unlimited.prepared], [found.lent], by="category")
    if failure is not None:
        failed = peak if failure.entry == ran.busiest else top_at(failure.entry)
    return peak, spilled, failed
