"""Order of the programs: phases one after another, or all at the recorded times.

`--phases rollout:B,train:A@5000,rollout:B,train:A` runs program B, then A up to entry 5,000, and so
on.  The phases of a program continue its recording where the last one ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from allocsim.analysis.colocate.program import Program
from allocsim.errors import ConfigError

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

    name: name of the phase.
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
    """Parse `KIND` for all programs and `B:KIND` for one; return the sleep of each program.

    Raises ConfigError for an unknown kind or program, and for "exit" of a program that goes on.
    """
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
    """Parse `--phases`; None for one phase of each program, in order.

    Raises ConfigError for a text that is not phases, for a phase without an end that is known, and
    for a program without a phase.
    """
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
    """Return name, number of the program, and entry at which the phase ends, if given."""
    match = _PHASE.fullmatch(part)
    letters = "".join(each.letter for each in programs)
    if match is None or match[2] not in letters:
        raise ConfigError(
            f"phase {part[:80]!r}: expected NAME:PROGRAM or NAME:PROGRAM@ENTRY with a program "
            f"from A to {letters[-1]}"
        )
    return match[1], letters.index(match[2]), None if match[3] is None else int(match[3])


def _ends(program: Program, entries: Sequence[int | None]) -> Iterator[int]:
    """Yield the step at which each phase of a program ends; the last one ends with the program."""
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


def turns_of_phases(phases: Sequence[Phase]) -> list[Turn]:
    return [Turn(number, phase.first, phase.end) for number, phase in enumerate(phases)]


def phases_at_once(programs: Sequence[Program], sleeps: Sequence[Sleep]) -> tuple[Phase, ...]:
    """Return one phase with all steps of each program, if programs run at the same time."""
    return tuple(
        Phase(program.letter, number, 0, len(program), sleep)
        for number, (program, sleep) in enumerate(zip(programs, sleeps, strict=True))
    )


def turns_by_time(programs: Sequence[Program]) -> tuple[list[Turn], bool]:
    """Return the turns of programs that run at the same time, in the order of the recorded times.

    Also returns True if the recorded times overlap.  If they do not, all programs are assumed to
    begin at the same moment.
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


def with_sleep(phases: Sequence[Phase], replaced: Mapping[Sleep, Sleep]) -> tuple[Phase, ...]:
    """Return the phases with other sleeps.

    replaced: new kind of sleep by the kind that it replaces.
    """
    return tuple(
        Phase(each.name, each.program, each.first, each.end, replaced.get(each.sleep, each.sleep))
        for each in phases
    )
