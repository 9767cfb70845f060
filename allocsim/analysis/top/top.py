"""Owners of a device's memory at one moment of a recording.

An owner is a line of code, stack, module, category, stream or pool.  The bytes of all owners add up
exactly to the allocated bytes of the baseline replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from allocsim._repr import Shown
from allocsim.editing import Saving, savings_of
from allocsim.errors import RecordingError
from allocsim.host import follow, state_after
from allocsim.ownership import (
    BY,
    CATEGORIES,
    UNKNOWN,
    Held,
    Moment,
    Phase,
    Scene,
    Whose,
    categories_of,
    held_at,
    moment_of,
    moment_of_state,
    scene_of_run,
    scene_of_state,
)
from allocsim.recording import Action, Frame, Recording, Trace, refuse_contradictions
from allocsim.replaying import Prepared, prepare, replay_prepared
from allocsim.simulation import DeviceRun, Progress
from allocsim.units import format_size

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Training steps and phases of a recording.  Each lasts until the next one begins.

    step_starts, phase_starts: first entry of each step, and of each occurrence of a phase.
    step_numbers: number of each step, as the program marked it, or else from 1.
    phase: index into `phases` for each item of `phase_starts`; the first phase is unknown ("").
    """

    step_starts: _Column
    step_numbers: _Column
    phase_starts: _Column
    phase: NDArray[np.uint8]
    phases: tuple[str, ...] = tuple("" if p is Phase.UNTOLD else p.text for p in Phase)


def course_of(scene: Scene, n_entries: int) -> Course:
    after = ~scene.is_before
    born, phase = scene.blocks.born[after], scene.phase[after]
    # The phase of an entry is that of its last allocation, as in `Scene.phase_at`.
    last = np.append(np.diff(born) > 0, True)[: len(born)]
    born = np.append(np.int64(-1), born[last])
    phase = np.append(np.uint8(Phase.UNTOLD), phase[last])
    changes = np.append(True, np.diff(phase) != 0)
    starts, kinds = np.maximum(born[changes], 0), phase[changes]
    # If two ranges begin at entry 0, the first is empty.
    seen = np.append(np.diff(starts) > 0, True)
    seen &= starts < n_entries
    steps = scene.step_starts
    reached = steps < n_entries
    numbers = scene.step_numbers[reached]
    return Course(steps[reached], numbers, starts[seen], kinds[seen])


_SHOWN = 10  # number of rows in the table of a notebook


@dataclass(frozen=True, slots=True)
class TopRow:
    """One owner with its memory.

    category: category of most of the bytes.
    where: line that holds most of the bytes; if owners are categories, the modules of the model
        that hold most of them.
    reason: why the blocks have this category, if owners are categories; else "".
    """

    owner: str
    category: str
    bytes: int
    blocks: int
    largest_bytes: int
    categories: dict[str, int]
    where: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory of all blocks with the same stack and category.

    frames: Python frames of the stack, innermost first.
    silent: "" if the stack was recorded, else a text such as "no stack recorded".
    """

    frames: tuple[Frame, ...]
    silent: str
    category: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, repr=False)
class Top(Shown):
    """Owners of one device's memory.

    by: grouping: "line", "stack", "module", "category", "stream" or "pool".
    pending_bytes, pending_blocks: freed memory that waits for other streams; it has no owner.
    rows: owners, largest first.
    categories: bytes of each category, largest first.
    holdings: the same memory, grouped by stack and category.
    notes: sentences about what was inferred, not recorded.
    savings: changes of the program that would reduce memory; only at an out-of-memory error.
    """

    path: str
    device: int
    at: Moment
    by: str
    allocated_bytes: int
    blocks: int
    pending_bytes: int
    pending_blocks: int
    rows: tuple[TopRow, ...]
    categories: dict[str, int]
    holdings: tuple[Holding, ...]
    notes: tuple[str, ...]
    savings: tuple[Saving, ...] = ()

    def headline(self) -> str:
        entry = "" if self.at.entry is None else f" (entry {self.at.entry:,})"
        held = f"{format_size(self.allocated_bytes)} in {self.blocks:,} blocks"
        first = f"; {format_size(self.rows[0].bytes)} {self.rows[0].owner}" if self.rows else ""
        return f"device {self.device}, {self.at.what}{entry}: {held}, by {self.by}{first}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for row in self.rows[:_SHOWN]:
            share = row.bytes / max(self.allocated_bytes, 1)
            yield row.owner, f"{format_size(row.bytes)}, {share:.1%}, blocks: {row.blocks:,}"
        rest = self.rows[_SHOWN:]
        if rest:
            yield f"{len(rest):,} more", format_size(sum(row.bytes for row in rest))


@dataclass(frozen=True, slots=True, eq=False)
class StackAnswers:
    """Owners of memory at one moment in several groupings, and the run's steps and phases.

    tops: one result for each requested grouping, in the requested order.
    scene: all blocks of the run, each with its phase.
    """

    tops: tuple[Top, ...]
    course: Course
    scene: Scene

    def categories_of(self, born: _Column, address: NDArray[np.uint64]) -> _Column:
        """Return the category of each block, as an index into `CATEGORIES`.

        born: entry that allocated the block; -1 if it is older than the recording.
        """
        blocks, known = self.scene.blocks, categories_of(self.scene)
        unknown = CATEGORIES.index(UNKNOWN)
        by_entry = np.full(blocks.n_entries, unknown, dtype=np.int64)
        is_new = blocks.born >= 0
        by_entry[blocks.born[is_new]] = known[is_new]
        older = dict(zip(blocks.address[~is_new].tolist(), known[~is_new].tolist(), strict=True))
        found = by_entry[np.maximum(born, 0)]
        for row in np.flatnonzero(born < 0):
            found[row] = older.get(int(address[row]), unknown)
        return found


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
    by: grouping: "line", "stack", "module", "category", "stream" or "pool".
    frames: number of frames in the name of an owner; None for 1 with lines, 8 with stacks and 3
        with modules.
    device: device number; None if only one device is recorded.
    torch_version: release to model; None to choose it from the recording.
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
    """Return the owners of memory in a finished baseline replay, in several groupings.

    since: count only blocks requested at this entry or later; -1 counts all.
    scene: result of `scene_of_run` for this replay, if it is known.
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
        savings=savings_of(categories, moment.phase) if moment.what == "oom" else (),
    )


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


def top_host(
    path: str,
    trace: Trace,
    at: str | int | None = None,
    *,
    by: str = "line",
    frames: int | None = None,
) -> Top:
    """Return the owners of the pinned memory that the program used at a moment.

    at: "peak" for most bytes in use, "end", or an entry number; None means "peak".
    """
    entry, what = _host_moment(path, trace, at)
    answer = top_of_state(path, state_after(trace, entry), by=by, frames=frames)
    totals = follow(trace, entry + 1).end
    notes = (
        f"{format_size(totals.pinned)} were pinned: {format_size(totals.in_use)} in use, "
        f"{format_size(totals.waiting)} freed and waiting, {format_size(totals.cached)} cached",
        "sizes are those of blocks, mostly rounded up to a power of two",
    )
    return replace(answer, at=Moment(max(entry, 0), what), notes=notes)


def _host_moment(path: str, trace: Trace, at: str | int | None) -> tuple[int, str]:
    last = len(trace) - 1
    if at in (None, "peak"):
        return follow(trace).peak_in_use.entry, "peak"
    if at == "end":
        return last, "end"
    if not isinstance(at, int):
        raise RecordingError(path, f"pinned memory has no moment {at!r}; expected peak or end")
    if not 0 <= at <= last:
        raise RecordingError(path, f"entry {at} does not exist; the last entry is {last}")
    return at, "entry"
