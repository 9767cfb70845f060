"""Compare two recordings A and B, or one recording under two settings A and B.

Memory is compared at one moment of each run, for each owner: the line of code, stack, module, …
that allocated it.  The differences of all owners add up exactly to the difference in allocated
memory.  To separate grown blocks from new ones, a block of A is paired with a block of B that has
the same owner and the same stack, apart from line numbers.  Blocks with equal stacks are paired in
order of allocation; if A and B have different numbers of such blocks, blocks of equal size are
paired first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from allocsim._repr import Shown
from allocsim.errors import RecordingError
from allocsim.metrics import Outline, outline_of
from allocsim.ownership import (
    BY,
    LINE,
    Held,
    Moment,
    Scene,
    held_at,
    moment_of,
    moment_of_state,
    moved_lines,
    scene_of_run,
    scene_of_state,
    status_of,
)
from allocsim.recording import Action, Recording, Trace, refuse_contradictions
from allocsim.replaying import Prepared, prepare, replay_prepared
from allocsim.simulation import DeviceRun, Progress, Setting
from allocsim.units import format_change, format_size


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of peak reserved memory, in bytes; their sum is the peak.

    requested: requested bytes of the blocks at peak allocated memory; their rounded bytes if the
        recording has only rounded sizes.
    rounding: bytes that size rounding adds to these blocks.
    unused: peak reserved minus peak allocated memory: fragmentation, cached blocks of other sizes,
        and freed blocks that wait for other streams.
    """

    requested: int
    rounding: int
    unused: int

    @property
    def reserved(self) -> int:
        return self.requested + self.rounding + self.unused


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of two compared runs.

    conf: PYTORCH_CUDA_ALLOC_CONF of the replay; "" if the recording has no history entries.
    reserved: parts of peak reserved memory; without entries, of the recorded reserved memory.
    at, held: compared moment of the run, and the blocks allocated at this moment.
    retries, ooms, driver_calls: num_alloc_retries, num_ooms and num_device_alloc of the whole run;
        None if the recording has no entries, or if the PyTorch release does not count them.
    notes: sentences about limits of the comparison, such as an inexact replay.
    outline: curve of memory over the run, for a small chart; None if the recording has no entries.
    """

    path: str
    device: int
    conf: str
    reserved: Parts
    at: Moment
    held: Held
    retries: int | None
    ooms: int | None
    driver_calls: int | None
    notes: tuple[str, ...]
    outline: Outline | None

    @property
    def allocated_bytes(self) -> int:
        return sum(self.held.sizes)


def side_of_run(prepared: Prepared, device_run: DeviceRun, conf: str, at: str | int | None) -> Side:
    trace = prepared.trace
    scene = scene_of_run(trace, prepared.start, device_run.timeline)
    timeline = device_run.timeline
    if not len(timeline.entry):
        raise RecordingError(prepared.path, "allocates nothing; expected a recording with requests")
    fullest = int(timeline.entry[np.argmax(timeline.allocated)])
    notes = []
    if device_run.fidelity is not None and not device_run.fidelity.is_exact:
        notes.append(f"the replay differs from the recording: {device_run.fidelity.first_mismatch}")
    moment = moment_of(prepared.path, trace, device_run, scene, at or "peak")
    stats = device_run.stats
    return Side(
        path=prepared.path,
        device=trace.device,
        conf=conf,
        reserved=_parts(scene, fullest, int(timeline.reserved.max())),
        at=moment,
        held=held_at(scene, trace, moment.entry or 0),
        retries=stats["num_alloc_retries"],
        ooms=stats["num_ooms"],
        driver_calls=stats.get("num_device_alloc"),
        notes=tuple(notes),
        outline=outline_of(timeline, len(trace)),
    )


def side_of_state(recording: Recording, trace: Trace, at: str | int | None) -> Side:
    moment = moment_of_state(recording.path, at)
    refuse_contradictions(recording)
    scene = scene_of_state(trace)
    return Side(
        path=recording.path,
        device=trace.device,
        conf="",
        reserved=_parts(scene, -1, sum(segment.total_size for segment in trace.segments)),
        at=moment,
        held=held_at(scene, trace, -1),
        retries=None,
        ooms=None,
        driver_calls=None,
        notes=("holds only a state, so its peaks are unknown and the state is compared",),
        outline=None,
    )


def _parts(scene: Scene, entry: int, reserved: int) -> Parts:
    rows = scene.blocks.in_use(entry)
    allocated = int(scene.blocks.size[rows].sum())
    requested = int(scene.blocks.requested[rows].sum())
    return Parts(requested, allocated - requested, reserved - allocated)


@dataclass(frozen=True, slots=True)
class Change:
    """Change from A to B of the memory of one owner, such as a line of code or a stack.

    owner: name of the owner in B; name in A if it holds no memory in B.
    was: name of the owner in A; it differs from `owner` if only the line number changed.
    a_bytes, b_bytes, a_blocks, b_blocks: bytes and number of blocks in A and in B.
    resized: bytes by which the blocks that are in both A and B grew.
    requested: change of the requested bytes (sizes before rounding).
    """

    owner: str
    was: str
    a_bytes: int
    b_bytes: int
    a_blocks: int
    b_blocks: int
    resized: int
    requested: int

    @property
    def bytes(self) -> int:
        return self.b_bytes - self.a_bytes

    @property
    def more(self) -> int:
        """Bytes of blocks that are only in B, minus bytes of blocks that are only in A."""
        return self.bytes - self.resized

    @property
    def rounding(self) -> int:
        return self.bytes - self.requested

    @property
    def status(self) -> str:
        return status_of(self.bytes, was_there=bool(self.a_blocks), is_there=bool(self.b_blocks))


def changes_of(a: Held, b: Held, by: str) -> tuple[Change, ...]:
    first, second = _Owned(a, by), _Owned(b, by)
    named = moved_lines(first.indices, second.indices) if by in ("line", "stack", "module") else {}
    # A line that only moved within its file is one owner, under its name in B.
    moved = {was: now for now, was in named.items()}
    owners = dict.fromkeys([*(moved.get(owner, owner) for owner in first.indices), *second.indices])
    made = [_change(first, second, owner, named.get(owner, owner)) for owner in owners]
    return tuple(sorted(made, key=lambda each: (-abs(each.bytes), -each.b_bytes, each.owner)))


class _Owned:
    def __init__(self, held: Held, by: str) -> None:
        self.held, self.sizes = held, held.sizes
        self.requested: list[int] = held.blocks.requested[held.rows].tolist()
        self.indices: dict[str, list[int]] = defaultdict(list)
        for index in range(len(held)):
            self.indices[held.name(by, index)].append(index)

    def of(self, owner: str) -> Sequence[int]:
        return self.indices.get(owner, ())

    def by_stack(self, owner: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for index in self.of(owner):
            found[LINE.sub("", self.held.name("stack", index))].append(self.sizes[index])
        return found


def _change(a: _Owned, b: _Owned, owner: str, was: str) -> Change:
    ours, theirs = a.of(was), b.of(owner)
    sums = [sum(side.sizes[i] for i in of) for side, of in ((a, ours), (b, theirs))]
    asked = [sum(side.requested[i] for i in of) for side, of in ((a, ours), (b, theirs))]
    return Change(
        owner=owner if theirs else was,
        was=was if theirs else owner,
        a_bytes=sums[0],
        b_bytes=sums[1],
        a_blocks=len(ours),
        b_blocks=len(theirs),
        resized=_resized(a.by_stack(was), b.by_stack(owner)),
        requested=asked[1] - asked[0],
    )


def _resized(a: Mapping[str, Sequence[int]], b: Mapping[str, Sequence[int]]) -> int:
    found = 0
    for stack in a.keys() & b.keys():
        ours, theirs = list(a[stack]), list(b[stack])
        # Pair blocks of equal size first.  Pairs by position alone would all differ in size after
        # an additional block.
        if len(ours) != len(theirs):
            same = Counter(ours) & Counter(theirs)
            ours, theirs = _without(ours, same), _without(theirs, same)
        pairs = zip_longest(ours, theirs)
        found += sum(y - x for x, y in pairs if x is not None and y is not None)
    return found


def _without(sizes: Sequence[int], taken: Counter[int]) -> list[int]:
    left, kept = Counter(taken), []
    for size in sizes:
        if left[size]:
            left[size] -= 1
        else:
            kept.append(size)
    return kept


_SHOWN = 10  # number of rows in the table of a notebook


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Memory of the runs A and B, and the differences for each owner of memory.

    by: kind of owner: "line", "stack", "module", "category", "stream" or "pool".
    changes: difference for each owner, the largest first.
    """

    a: Side
    b: Side
    by: str
    changes: tuple[Change, ...]

    @property
    def reserved_change(self) -> int:
        """Peak reserved bytes of B minus those of A."""
        return self.b.reserved.reserved - self.a.reserved.reserved

    @property
    def allocated_change(self) -> int:
        """Allocated bytes of B minus those of A, at the compared moments."""
        return self.b.allocated_bytes - self.a.allocated_bytes

    @property
    def parts(self) -> Parts:
        """Requested, rounding and unused bytes of B minus those of A; they may be negative."""
        a, b = self.a.reserved, self.b.reserved
        return Parts(
            requested=b.requested - a.requested,
            rounding=b.rounding - a.rounding,
            unused=b.unused - a.unused,
        )

    def headline(self) -> str:
        sizes = [format_size(side.reserved.reserved) for side in (self.a, self.b)]
        said = f"{sizes[0]} reserved at the peak, then {sizes[1]}"
        first = next((each for each in self.changes if each.bytes), None)
        if first is None:
            return f"{said}; every {self.by} holds the same"
        return f"{said}; most by {first.owner}: {format_change(first.bytes)}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        changed = [each for each in self.changes if each.bytes]
        for each in changed[:_SHOWN]:
            yield each.owner, format_change(each.bytes)
        rest = changed[_SHOWN:]
        if rest:
            yield f"{len(rest):,} more", format_change(sum(each.bytes for each in rest))


def compare(
    a: Recording,
    b: Recording,
    *,
    at: str | int | None = None,
    by: str = "line",
    device: int | None = None,
    torch_version: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two recordings, each replayed under its recorded settings.

    at: moment of both recordings that is compared: "peak" for peak allocated memory, "oom" for the
        last out-of-memory error, "end", or an index of a history entry.  None means "peak".  A
        recording without entries has only "end".
    by: kind of owner of a block: "line", "stack", "module", "category", "stream" or "pool".
    device: device number in both; None if only one device is recorded.
    torch_version: PyTorch release to model; None to choose it from each recording.
    progress: callback for the progress of the replays.
    Raises RecordingError for an unknown device or moment, and ValueError for an unknown `by`.
    """
    sides = []
    for recording in (a, b):
        trace = recording.only_device(device)
        if not trace.count(Action.ALLOC):
            sides.append(side_of_state(recording, trace, at))
            continue
        (prepared,) = prepare(recording, trace.device, torch_version)
        sides.append(_side_under(prepared, None, at, progress))
    return _compared(sides[0], sides[1], by)


def compare_settings(
    recording: Recording,
    confs: tuple[str | None, str],
    *,
    at: str | int | None = None,
    by: str = "line",
    device: int | None = None,
    torch_version: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Replay one recording under two settings A and B, and compare the replays.

    confs: PYTORCH_CUDA_ALLOC_CONF of A and of B; None for the recorded value.
    at, by: compared moment and kind of owner, with the values that `compare` accepts.
    device: device number; None if only one device is recorded.
    torch_version: PyTorch release to model; None to choose it from the recording.
    progress: callback for the progress of the replays.
    Raises the errors of `compare`.  Also raises RecordingError for a recording without
    entries, and ConfigError for a setting that the PyTorch release refuses.
    """
    trace = recording.only_device(device)
    if not trace.count(Action.ALLOC):
        what = "holds only a state, which cannot be replayed under other settings"
        raise RecordingError(recording.path, what)
    (prepared,) = prepare(recording, trace.device, torch_version)
    first, second = (_side_under(prepared, conf, at, progress) for conf in confs)
    return _compared(first, second, by)


def _side_under(
    prepared: Prepared, conf: str | None, at: str | int | None, progress: Progress | None
) -> Side:
    run = replay_prepared((prepared,), None if conf is None else Setting(conf), progress=progress)
    return side_of_run(prepared, run.devices[0], run.conf, at)


def _compared(a: Side, b: Side, by: str) -> Comparison:
    if by not in BY:
        raise ValueError(f"by={by!r} is not one of {', '.join(BY)}")
    return Comparison(a, b, by, changes_of(a.held, b.held, by))
