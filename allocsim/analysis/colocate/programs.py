"""Recorded programs that share a card, and their order: phases, or all at the recorded times.

`--phases rollout:B,train:A@5000,rollout:B,train:A` runs program B, then A up to entry 5,000, and so
on.  The phases of a program continue its recording where the last one ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from string import ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError, RecordingError
from allocsim.recording import MarkKind, load
from allocsim.replaying import Prepared, parting_of, prepare
from allocsim.simulation import Plan, Setting
from allocsim.state import DEFAULT_POOL, PoolId

_EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True, eq=False)
class Program:
    """Recorded program, and the setting under which it runs.

    letter: name of the program in phases, by its position on the command line.
    prepared: device of its recording, prepared for replay.
    context: bytes of its CUDA context.
    has_context: the recording or the user gives `context`.
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
        """Plan of the program, without the recorded results of driver calls."""
        return self.prepared.plan_under(self.setting, self.prepared.free_plan)

    def __len__(self) -> int:
        return len(self.plan.steps)

    def step_at(self, entry: int) -> int:
        """Return the number of the first step that belongs to `entry` or a later entry."""
        return int(np.argmax(np.append(self.plan.steps.entry, len(self.prepared.trace)) >= entry))

    @cached_property
    def times(self) -> NDArray[np.int64]:
        """Time of each step in microseconds, never decreasing.

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
        """MemPools of the program, in order of creation.

        Without marks, MemPools look like handles of `graph_pool_handle`, so all pools with an id
        (0, n), which the program created itself, count.
        """
        made = [m.value for m in self.prepared.marks if m.kind is MarkKind.POOL_CREATED]
        found = [each for each in made if isinstance(each, tuple)]
        own = {pool for pool in self.plan.pools if pool[0] == 0} - {DEFAULT_POOL}
        return tuple(found) or tuple(sorted(own))

    @property
    def is_proved(self) -> bool:
        return parting_of(self.prepared) is None

    def expandable(self) -> Program:
        config = self.setting.config(self.prepared.release)
        if config.expandable_segments:
            return self
        conf = self.setting.conf
        return replace(self, setting=replace(
            self.setting, conf=f"{conf},{_EXPANDABLE}" if conf else _EXPANDABLE
        ))  # fmt: skip


def programs_in(
    paths: Sequence[str],
    *,
    conf: str | None,
    torch_version: str | None,
    device: int | None,
    context: int | None,
) -> tuple[Program, ...]:
    """Load the programs; their letters are A, B, C and so on.

    conf: setting of all programs; None for the recorded ones.
    context: bytes of each CUDA context; None for the recorded ones.
    Raises ConfigError for a wrong number of files, and RecordingError for a recording of several
    devices without `device`.
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
        setting.config(prepared.release)  # raises ConfigError for a conf that is refused
        own = prepared.context_memory
        known = own if context is None else context
        programs.append(Program(letter, prepared, setting, known, bool(own) or context is not None))
    return tuple(programs)


_PHASE = re.compile(r"\s*([\w .-]{1,40}):([A-Z])(?:@(\d{1,12}))?\s*")


class Sleep(StrEnum):
    """Memory that a program releases at the end of each of its phases."""

    NONE = "none"
    """Nothing: the allocator keeps all reserved memory."""
    CACHE = "cache"
    """Cached memory, by empty_cache."""
    POOLS = "pools"
    """Memory of the MemPools, until the program wakes, and cached memory."""
    LEVEL1 = "level1"
    """As vLLM's level 1: `POOLS`, with a copy of the first MemPool (the weights) in host memory."""
    LEVEL2 = "level2"
    """As vLLM's level 2: `POOLS`, without a copy."""
    ALL = "all"
    """All memory of the allocator, until the program wakes."""
    EXIT = "exit"
    """All memory and the CUDA context, because the process ends."""

    @property
    def is_of_pools(self) -> bool:
        return self in (Sleep.POOLS, Sleep.LEVEL1, Sleep.LEVEL2)


@dataclass(frozen=True, slots=True)
class Phase:
    """Part of a program that runs without interruption, unless programs run at recorded times.

    program: number of the program, from 0.
    first, end: first step of the program's plan in the phase, and the step after the last.
    sleep: memory that the program releases at the end.
    """

    name: str
    program: int
    first: int
    end: int
    sleep: Sleep = Sleep.NONE


@dataclass(frozen=True, slots=True)
class Turn:
    """Steps of a phase that run without interruption by another program.

    first, end: first step of the program's plan in the turn, and the step after the last.
    """

    phase: int
    first: int
    end: int


def sleeps_of(texts: Sequence[str], programs: Sequence[Program]) -> tuple[Sleep, ...]:
    """Return the sleep of each program, from texts such as "level1" (all) and "B:level1" (one)."""
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
    """Parse `--phases`; None for one phase of each program, in order."""
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
        # Equal numbers of training steps; work before the first step is in the first phase.
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


def phases_at_once(programs: Sequence[Program], sleeps: Sequence[Sleep]) -> tuple[Phase, ...]:
    """Return one phase for each program, with all its steps, for programs that run at once."""
    return tuple(
        Phase(program.letter, number, 0, len(program), sleep)
        for number, (program, sleep) in enumerate(zip(programs, sleeps, strict=True))
    )


def turns_by_time(programs: Sequence[Program]) -> tuple[list[Turn], bool]:
    """Return the turns of programs that run at the same time, in the order of the recorded times.

    The second result is False if the recorded times do not overlap; then the recorded times are
    shifted so that all programs begin at the same moment.
    """
    times = [program.times for program in programs]
    spans = [(each[0], each[-1]) for each in times if len(each)]
    is_one_run = max((a for a, _ in spans), default=0) <= min((b for _, b in spans), default=0)
    if not is_one_run:
        times = [each - each[0] if len(each) else each for each in times]
    owner = np.repeat(np.arange(len(times)), [len(each) for each in times])
    owner = owner[np.argsort(np.concatenate(times), kind="stable")]
    starts = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
    reached: dict[int, int] = dict.fromkeys(range(len(times)), 0)
    turns = []
    for start, end in zip(starts, [*starts[1:], len(owner)], strict=True):
        index = int(owner[start])
        first = reached[index]
        reached[index] = first + end - start
        turns.append(Turn(index, first, reached[index]))
    return turns, is_one_run
