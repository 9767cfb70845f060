"""Replay several recorded programs on one card, and find the smallest card for them.

Each size is the result of a replay of all programs together, except `Colocation.any_order`, which
is the sum of the programs' separate peaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from allocsim._repr import Shown
from allocsim.analysis.colocate.card import Card, CardRun, Failure, PhaseRun
from allocsim.analysis.colocate.programs import (
    Phase,
    Program,
    Sleep,
    Turn,
    phases_of,
    programs_in,
    sleeps_of,
)
from allocsim.core import PAGE
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.replaying import Trial, find_smallest, parting_of
from allocsim.simulation import Progress
from allocsim.units import format_size

__all__ = ["Colocation", "Failure", "PhaseRun", "Program", "Way", "colocate"]

_EXPANDABLE = "expandable_segments:True"

Watch = Callable[[str], Progress | None]
"""Function that is given the name of a group of replays before they begin, such as "as given".

It returns a progress callback for these replays, or None for no progress.
"""


@dataclass(frozen=True, slots=True)
class Way:
    """Variant of the replay, for example with expandable segments, and the memory that it needs.

    name: "as given", or the change made to all programs, such as "expandable_segments:True".
    peak: largest use of an unlimited card, in bytes; None if a request fails even there.
    smallest: bytes of the smallest card on which every request succeeds; None if unknown.
    """

    name: str
    peak: int | None
    smallest: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Colocation(Shown):
    """Result of a replay of several programs on one card.

    threads: True if the programs are threads of one process with one allocator.
    by_time: True if the programs run at the same time.  Their requests are then in the order of the
        recorded times, and each program has one phase.
    phases: parts of the programs, in the order of execution.
    run: replay on the given card.
    ways: needed memory of this replay, followed by variants that may need less; empty if the
        smallest card was not searched.
    any_order: sum of the peaks of the separate programs, in bytes.  On a card of this size, the
        requests succeed in every order.  None for threads.
    """

    programs: tuple[Program, ...]
    phases: tuple[Phase, ...]
    threads: bool
    by_time: bool
    run: CardRun
    ways: tuple[Way, ...]
    any_order: int | None
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.run.failure is None

    @property
    def smallest(self) -> int | None:
        return self.ways[0].smallest if self.ways else None

    def headline(self) -> str:
        verdict = "every request succeeds" if self.fits else "a request fails"
        return f"{len(self.programs)} programs on one card: {verdict}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield "peak", format_size(self.run.peak)
        for way in self.ways:
            if way.smallest is not None:
                yield f"smallest card, {way.name}", format_size(way.smallest)


def colocate(
    paths: Sequence[str],
    *,
    device_memory: int | None = None,
    phases: str | None = None,
    by_time: bool = False,
    threads: bool = False,
    sleep: Sequence[str] = (),
    conf: str | None = None,
    context: int | None = None,
    torch_version: str | None = None,
    device: int | None = None,
    smallest: bool = True,
    watch: Watch | None = None,
) -> Colocation:
    """Replay recorded programs together on one card.

    paths: recordings; they are named A, B, C in this order.
    device_memory: bytes of the card; None for an unlimited one.
    phases: phases in order, each as NAME:PROGRAM or NAME:PROGRAM@ENTRY, such as
        "rollout:B,train:A@5000,rollout:B,train:A".  A phase ends at its entry, the last phase of
        a program at its end.  Without entries, the phases of a program get equal numbers of
        training steps.  None runs each program once, one after another.
    by_time: run all programs at the same time, with their requests in the order of the recorded
        times; excludes `phases`.
    threads: run the programs as threads of one process, with one allocator.
    sleep: memory that programs release after each phase: a value of `Sleep` for all programs, such
        as "cache", or for one program, such as "B:cache".
    conf: PYTORCH_CUDA_ALLOC_CONF of all programs; None for the recorded values.
    context: bytes of each CUDA context; None for the recorded sizes.
    torch_version: PyTorch release to model; None for the recorded release.
    device: device number in each recording; None if only one device is recorded.
    smallest: find the smallest card for the programs as given, for an empty_cache after each phase,
        and for expandable segments.
    watch: function that is called with the name of each group of replays; it returns a progress
        callback for them, or None for no progress.
    Raises RecordingError for files that cannot be replayed, and ConfigError for wrong options.
    """
    programs = programs_in(
        paths, conf=conf, torch_version=torch_version, device=device, context=context
    )
    sleeps = sleeps_of(sleep, programs)
    if threads and {Sleep.ALL, Sleep.EXIT} & {*sleeps}:
        what = "sleep all and exit release the memory of a process, which threads share"
        raise ConfigError(f"{what}; expected no threads, or another kind of sleep")
    if by_time and phases is not None:
        raise ConfigError("phases and recorded times exclude each other; expected one of them")
    notes = _notes(programs)
    if by_time:
        parts = tuple(
            Phase(program.letter, number, 0, len(program), sleeps[number])
            for number, program in enumerate(programs)
        )
        turns, is_one_run = _turns_by_time(programs)
        if not is_one_run:
            notes.append("the recordings were made at different times: all begin at once here")
    else:
        parts = phases_of(phases, programs, sleeps)
        turns = [Turn(number, part.first, part.end) for number, part in enumerate(parts)]
    notes += [
        f"{program.letter} has no MemPool that sleep could release"
        for program, kind in zip(programs, sleeps, strict=True)
        if kind.is_of_pools and not program.mempools
    ]
    ask = _Question(programs, parts, turns, threads, watch)
    run = ask.on(device_memory, "replaying")
    if run is None:
        raise ConfigError(
            f"device memory {format_size(device_memory or 0)} cannot hold what the programs had "
            "reserved before their first entries"
        )
    free = run if device_memory is None else ask.on(None, "replaying")
    assert free is not None
    return Colocation(
        programs=programs,
        phases=parts,
        threads=threads,
        by_time=by_time,
        run=run,
        ways=tuple(_ways(ask, free)) if smallest else (),
        any_order=None if threads else sum(free.own_peaks),
        notes=tuple(notes),
    )


def _turns_by_time(programs: Sequence[Program]) -> tuple[list[Turn], bool]:
    times = [program.times for program in programs]
    spans = [(each[0], each[-1]) for each in times if len(each)]
    is_one_run = max((a for a, _ in spans), default=0) <= min((b for _, b in spans), default=0)
    if not is_one_run:  # if recorded one after another, shift the times so that all begin at once
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


def _notes(programs: Sequence[Program]) -> list[str]:
    notes = []
    unknown = [each.letter for each in programs if not each.has_context]
    if unknown:
        notes.append(
            f"the CUDA context of {' and '.join(unknown)} is not recorded and counts as 0; it "
            "takes about 0.5 GiB (--context)"
        )
    return notes + [
        f"{each.letter}: the replay under the recorded settings differs from the recording; its "
        "figures are not proved"
        for each in programs
        if parting_of(each.prepared) is not None
    ]


@dataclass(frozen=True, slots=True)
class _Question:
    programs: tuple[Program, ...]
    phases: tuple[Phase, ...]
    turns: list[Turn]
    threads: bool
    watch: Watch | None

    def on(self, memory: int | None, name: str) -> CardRun | None:
        progress = None if self.watch is None else self.watch(name)
        try:
            card = Card(self.programs, self.phases, self.turns, memory, threads=self.threads)
        except ConfigError:
            if memory is None:
                raise
            return None
        return card.run(progress)


def _ways(ask: _Question, free: CardRun) -> Iterator[Way]:
    given = "as given"
    yield Way(given, free.peak if free.failure is None else None, _smallest(ask, free, given))
    changed = []
    phases = tuple(
        replace(each, sleep=Sleep.CACHE) if each.sleep is Sleep.NONE else each
        for each in ask.phases
    )
    if phases != ask.phases and len(ask.phases) > 1 and len(ask.turns) == len(ask.phases):
        changed.append(("empty_cache after each phase", replace(ask, phases=phases)))
    programs = tuple(map(_expandable, ask.programs))
    if any(a is not b for a, b in zip(programs, ask.programs, strict=True)):
        changed.append((_EXPANDABLE, replace(ask, programs=programs)))
        if len(changed) > 1:
            changed.append(("both", replace(ask, programs=programs, phases=phases)))
    for name, other in changed:
        try:
            run = other.on(None, name)
            assert run is not None
            peak = run.peak if run.failure is None else None
            yield Way(name, peak, _smallest(other, run, name))
        except (ConfigError, UndefinedBehaviorError, UpstreamError):
            continue  # the PyTorch release has no such option, or fails with it


def _expandable(program: Program) -> Program:
    setting = program.setting
    if setting.config(program.prepared.release).expandable_segments:
        return program
    conf = ",".join(filter(None, (setting.conf, _EXPANDABLE)))
    return replace(program, setting=replace(setting, conf=conf))


def _smallest(ask: _Question, free: CardRun, name: str) -> int | None:
    if free.failure is not None:
        return None
    depends = any(each.prepared.depends_on_device(each.setting) for each in ask.programs)
    maps = any(
        each.setting.config(each.prepared.release).expandable_segments for each in ask.programs
    )

    def on(pages: int) -> Trial | None:
        run = ask.on(pages * PAGE, name)
        return None if run is None else _trial(run)

    first = _reached(_trial(free))
    found = find_smallest(
        on,
        lambda trial: trial.goes_through,
        least=max(-(-free.lower_bound // PAGE), 1),
        first=first,
        most=16 * first,
        known=None if depends or maps else _trial(free),
        peak=_reached if maps else None,
        same=None if depends or maps else _reached,
        needed=lambda trial: None if trial.needed_bytes is None else -(-trial.needed_bytes // PAGE),
    )
    return None if found is None else found.steps * PAGE


def _trial(run: CardRun) -> Trial:
    failure = run.failure
    return Trial(
        peak_device_bytes=run.peak,
        oom_entry=None if failure is None else failure.entry or 0,
        needed_bytes=None if failure is None else failure.needed,
        entries=run.steps,
    )


def _reached(trial: Trial) -> int:
    return -(-trial.peak_device_bytes // PAGE)
