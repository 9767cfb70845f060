"""Recorded programs that share a card, their phases, and the merged requests of threads.

`--phases rollout:B,train:A@5000,train:A` runs program B, then A up to entry 5,000, then the rest of
A.  Threads share one allocator, so their plans (requests, frees and other calls to replay) are
merged.  Each program's addresses, streams and pool ids then get an offset, to keep them distinct.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from string import ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.errors import ConfigError, RecordingError
from allocsim.export import columns_of
from allocsim.recording import MarkKind, load
from allocsim.replaying import Prepared, prepare
from allocsim.simulation import Change, Plan, Planned, Setting, StepKind, Steps
from allocsim.state import DEFAULT_POOL, INACTIVE, PENDING, PoolId


@dataclass(frozen=True, eq=False)
class Program:
    """Recorded program, and the setting under which it runs.

    letter: name of the program: "A" for the first on the command line, then "B", and so on.
    prepared: recording of the program, ready for a replay.
    context: bytes of the program's CUDA context.
    has_context: True if the recording or the user gives `context`; otherwise it is 0.
    """

    letter: str
    prepared: Prepared
    setting: Setting
    context: int
    has_context: bool

    @property
    def path(self) -> str:
        return self.prepared.path

    @cached_property
    def plan(self) -> Plan:
        return self.prepared.plan_under(self.setting, self.prepared.free_plan)

    def __len__(self) -> int:
        return len(self.plan.steps)

    def step_at(self, entry: int) -> int:
        return int(np.argmax(np.append(self.plan.steps.entry, len(self.prepared.trace)) >= entry))

    @cached_property
    def times(self) -> NDArray[np.int64]:
        """Time of each allocator call to replay, in microseconds; it never decreases.

        The time of a call is the latest recorded time among the history entries up to it.
        Raises RecordingError if the entries have no times.
        """
        times = self.prepared.trace.time_us
        if times is None:
            what = "its entries have no times; expected time_us (PyTorch 2.2 or later), or --phases"
            raise RecordingError(self.path, what)
        entry = np.clip(self.plan.steps.entry, 0, max(len(times) - 1, 0))
        return np.maximum.accumulate(times[entry])

    @cached_property
    def training_steps(self) -> tuple[int, ...]:
        marks = self.prepared.marks
        return tuple(mark.entry for mark in marks if mark.kind is MarkKind.STEP)

    @cached_property
    def mempools(self) -> tuple[PoolId, ...]:
        """Ids of the MemPools in order of creation.

        If the recording does not show their creation, these are all pool ids of the form (0, n).
        """
        made = [m.value for m in self.prepared.marks if m.kind is MarkKind.POOL_CREATED]
        found = [each for each in made if isinstance(each, tuple)]
        own = {pool for pool in self.plan.pools if pool[0] == 0} - {DEFAULT_POOL}
        return tuple(found) or tuple(sorted(own))


def programs_in(
    paths: Sequence[str],
    *,
    conf: str | None,
    torch_version: str | None,
    device: int | None,
    context: int | None,
) -> tuple[Program, ...]:
    """Load the recordings as programs that are named A, B, C and so on.

    conf: PYTORCH_CUDA_ALLOC_CONF of all programs; None for the recorded values.
    torch_version: PyTorch release to model; None for the recorded release.
    device: device number in each recording; None if only one device is recorded.
    context: bytes of each CUDA context; None for the recorded sizes.
    Raises ConfigError for a wrong number of recordings or for a refused conf, and RecordingError
    for a recording with several devices if `device` is None.
    """
    if not 2 <= len(paths) <= len(ascii_uppercase):
        raise ConfigError(f"{len(paths)} recording(s) given; expected 2 to {len(ascii_uppercase)}")
    programs = []
    for letter, path in zip(ascii_uppercase, paths, strict=False):
        ready = prepare(load(path), device, torch_version)
        if len(ready) > 1:
            what = f"has {len(ready)} devices; expected one, or --device N"
            raise RecordingError(path, what)
        prepared = ready[0]
        if prepared.others_memory:  # the other programs of this card are given as files
            prepared = replace(prepared, is_elsewhere=True)
        setting = prepared.recorded if conf is None else Setting(conf)
        setting.config(prepared.release)  # raises ConfigError for a conf that PyTorch refuses
        own = prepared.context_memory
        known = own if context is None else context
        programs.append(Program(letter, prepared, setting, known, bool(own) or context is not None))
    return tuple(programs)


_PHASE = re.compile(r"\s*([\w .-]{1,40}):([A-Z])(?:@(\d{1,12}))?\s*")


class Sleep(StrEnum):
    """Memory that a program releases at the end of a phase, until its next phase begins."""

    NONE = "none"
    """Nothing: the allocator keeps all reserved memory."""
    CACHE = "cache"
    """Cached memory, by empty_cache."""
    POOLS = "pools"
    """Cached memory, and all memory of the program's MemPools."""
    LEVEL1 = "level1"
    """Same as `POOLS`, with a host copy of the first MemPool (the weights): vLLM's level 1."""
    LEVEL2 = "level2"
    """Same as `POOLS`, without a host copy: vLLM's level 2."""
    ALL = "all"
    """All memory of the allocator."""
    EXIT = "exit"
    """All memory and the CUDA context: the process ends."""

    @property
    def is_of_pools(self) -> bool:
        return self in (Sleep.POOLS, Sleep.LEVEL1, Sleep.LEVEL2)


@dataclass(frozen=True, slots=True)
class Phase:
    """Part of a program.  It runs without interruption, unless all programs run at once.

    name: name for the report, such as "rollout".
    program: index of the program.
    first, end: range of steps in the program's plan (its requests, frees and other calls to
        replay); `end` is the step after the last.
    sleep: memory that the program releases at the end of the phase.
    """

    name: str
    program: int
    first: int
    end: int
    sleep: Sleep = Sleep.NONE


@dataclass(frozen=True, slots=True)
class Turn:
    """Allocator calls of a phase that run without interruption by another program.

    phase: index of the phase.
    first, end: range of calls in the program's plan (all calls to replay); `end` is after the last.
    """

    phase: int
    first: int
    end: int


def sleeps_of(texts: Sequence[str], programs: Sequence[Program]) -> tuple[Sleep, ...]:
    """Return each program's `Sleep`, from texts such as "cache" (for all) or "B:cache" (for B)."""
    found = dict.fromkeys((each.letter for each in programs), Sleep.NONE)
    for text in texts:
        letter, _, kind = text.rpartition(":")
        if kind not in set(Sleep):
            raise ConfigError(f"sleep {text[:80]!r}: expected {', '.join(Sleep)}, or B:KIND")
        if letter and letter not in found:
            raise ConfigError(f"sleep {text[:80]!r}: expected a program from A to {[*found][-1]}")
        found.update(dict.fromkeys([letter] if letter else found, Sleep(kind)))
    return tuple(found.values())


def phases_of(
    text: str | None, programs: Sequence[Program], sleeps: Sequence[Sleep]
) -> tuple[Phase, ...]:
    given = text or ",".join(f"{each.letter}:{each.letter}" for each in programs)
    parsed = [_parsed(part, programs) for part in given.split(",")]
    for number, program in enumerate(programs):
        if all(index != number for _, index, _ in parsed):
            raise ConfigError(f"phases {given[:80]!r}: program {program.letter} has no phase")
    ends = {number: _ends(program, [end for _, index, end in parsed if index == number])
            for number, program in enumerate(programs)}  # fmt: skip
    phases, reached = [], [0] * len(programs)
    for name, index, _ in parsed:
        end = next(ends[index])
        phases.append(Phase(name, index, reached[index], end, sleeps[index]))
        reached[index] = end
    for phase in phases:
        if phase.sleep is Sleep.EXIT and phase.end < reached[phase.program]:
            letter = programs[phase.program].letter
            raise ConfigError(f"sleep {letter}:exit: {letter} has a later phase; expected its last")
    return tuple(phases)


def _parsed(part: str, programs: Sequence[Program]) -> tuple[str, int, int | None]:
    match = _PHASE.fullmatch(part)
    letters = "".join(each.letter for each in programs)
    if match is None or match[2] not in letters:
        raise ConfigError(
            f"phase {part[:80]!r}: expected NAME:PROGRAM or NAME:PROGRAM@ENTRY with a program "
            f"from A to {letters[-1]}"
        )
    return match[1], letters.index(match[2]), None if match[3] is None else int(match[3])


def _ends(program: Program, entries: Sequence[int | None]) -> Iterator[int]:
    given: list[int | None] = [*entries]
    n_phases, steps = len(entries), program.training_steps
    if None in given[:-1]:
        if any(each is not None for each in given) or len(steps) < n_phases:
            raise ConfigError(
                f"program {program.letter} has {n_phases} phases, and its recording does not show "
                f"where they end; expected {program.letter}@ENTRY in all but the last"
            )
        # Each phase gets the same number of training steps; the first phase also gets the work
        # before the first training step.
        given = [steps[len(steps) * n // n_phases] for n in range(1, n_phases)] + [None]
    reached = 0
    for entry in given:
        end = len(program) if entry is None else program.step_at(entry)
        if end < reached or (entry or 0) > len(program.prepared.trace):
            raise ConfigError(
                f"phase {program.letter}@{entry}: expected an entry after the previous phase, up "
                f"to {len(program.prepared.trace):,}"
            )
        reached = end
        yield end


_APART = 52  # addresses and stream handles have fewer bits than this
_POOLS_APART = 32

_OF_POOLS = (StepKind.SCOPE, StepKind.END_POOL, StepKind.DELETE_POOL)
_CHANGES = (StepKind.SETTINGS, StepKind.FRACTION)


def pool_in(program: int, pool: PoolId) -> PoolId:
    return pool[0], pool[1] + (program << _POOLS_APART)


def merged(
    programs: Sequence[Program], phases: Sequence[Phase], turns: Sequence[Turn]
) -> tuple[Plan, tuple[int, ...]]:
    """Merge the requests, frees and other calls of threads into one plan for their allocator.

    turns: ranges of the programs' calls, in order of execution.
    Returns the merged plan, and for each turn the index in it of the first call after the turn.
    Raises ConfigError if the programs have different PyTorch releases or settings.
    """
    first = programs[0]
    for other in programs[1:]:
        if other.prepared.release != first.prepared.release:
            ours, theirs = first.prepared.release.version, other.prepared.release.version
            raise ConfigError(
                f"threads share one PyTorch, but {other.letter} needs {theirs} and {first.letter} "
                f"{ours}; expected one release (--torch)"
            )
        if other.setting.config(other.prepared.release) != first.setting.config(
            first.prepared.release
        ):
            raise ConfigError(
                f"threads share one allocator, but {other.letter} has the settings "
                f"{other.setting} and {first.letter} {first.setting}; expected --conf"
            )
    pools: list[PoolId] = []
    changes: list[Change] = []
    rows = [_Renamed(number, program, pools, changes) for number, program in enumerate(programs)]
    parts: list[Steps] = []
    ends, last = [], -1
    reached = 0
    for turn in turns:
        number = phases[turn.phase].program
        row = rows[number]
        added = [row.steps.part(turn.first, turn.end)]
        if number != last:
            added.insert(0, row.entering(turn.first))
        last = number
        parts += added
        reached += sum(map(len, added))
        ends.append(reached)
    columns = ("kind", "entry", "addr", "size", "stream")
    steps = Steps(*(np.concatenate([getattr(p, name) for p in parts]) for name in columns))
    plan = replace(first.plan, steps=steps, pools=tuple(pools), changes=tuple(changes))
    return plan, tuple(ends)


class _Renamed:
    # Steps of one program, with offsets that keep its addresses, streams and pools distinct from
    # those of other programs.  The constructor appends the program's pools and changes of settings
    # to `pools` and `changes`.
    def __init__(
        self, number: int, program: Program, pools: list[PoolId], changes: list[Change]
    ) -> None:
        plan, apart = program.plan, np.uint64(number << _APART)
        size = plan.steps.size.copy()
        kind = plan.steps.kind
        self._start = _live_steps(number, program, pools, plan)
        of_pools = any_of(kind, _OF_POOLS) & (size >= 0)
        size[of_pools] += len(pools)
        pools += [pool_in(number, pool) for pool in plan.pools]
        of_changes = any_of(kind, _CHANGES)
        size[of_changes] += len(changes)
        changes += plan.changes
        stream = plan.steps.stream
        self.steps = Steps(
            kind=kind,
            entry=plan.steps.entry,
            addr=plan.steps.addr + apart,
            size=size,
            stream=np.where(stream == 0, stream, stream + apart),
        )
        self._scopes = _scopes(self.steps)

    def entering(self, step: int) -> Steps:
        """Return the calls to insert in the merged plan before the program continues at `step`.

        They select the pool that the program was using.  At the program's first call, they also
        allocate the blocks that were in use before the recording.

        step: index of a call in the program's own plan.
        """
        at = bisect_right(self._scopes, step - 1, key=lambda each: each[0]) - 1
        pool, stream = self._scopes[at][1:] if at >= 0 else (-1, 0)
        rows = [] if step else list(self._start)
        rows.append((StepKind.SCOPE, 0, 0, pool, stream))
        dtypes = (np.uint8, np.int64, np.uint64, np.int64, np.uint64)
        return Steps(*columns_of(zip(*rows, strict=True), dtypes))


def _scopes(steps: Steps) -> list[tuple[int, int, int]]:
    # Items are (step, pool, stream); the pool is -1 where the use of a pool ends.
    found: list[tuple[int, int, int]] = []
    for at in np.flatnonzero(any_of(steps.kind, _OF_POOLS)).tolist():
        pool, stream = int(steps.size[at]), int(steps.stream[at])
        if steps.kind[at] == StepKind.SCOPE:
            found.append((at, pool, stream))
        elif found and found[-1][1] == pool:
            found.append((at, -1, stream))
    return found


def _live_steps(number: int, program: Program, pools: list[PoolId], plan: Plan) -> list[Planned]:
    rows: list[Planned] = []
    apart = number << _APART
    ordered = sorted(program.prepared.start, key=lambda s: (s.pool_id, s.stream, s.address))
    for segment in ordered:
        pool = -1
        if segment.pool_id != DEFAULT_POOL:
            if segment.pool_id not in plan.pools:
                continue  # no entry names the pool, so its memory never changes
            pool = len(pools) + plan.pools.index(segment.pool_id)
        stream = segment.stream + apart if segment.stream else 0
        rows.append((StepKind.SCOPE, 0, 0, pool, stream))
        for block in segment.blocks:
            if block.state == INACTIVE:
                continue
            size = block.requested_size or block.size
            rows.append((StepKind.ALLOC, 0, block.address + apart, size, stream))
            if block.state == PENDING:
                rows.append((StepKind.FREE_REQUEST, 0, block.address + apart, size, stream))
    return rows
