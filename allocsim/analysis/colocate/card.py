"""Replay several programs on one card: each as a process, or all as threads of one process.

While one process runs, the CUDA context and the reserved memory of all others count as used on the
card.  The replay ends at the first request that fails although it succeeded in the recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from allocsim.analysis.colocate.programs import Phase, Program, Sleep, Turn, merged, pool_in
from allocsim.collector import collector_paused
from allocsim.core import PAGE, UNLIMITED_DEVICE, Block, ReplayAllocator
from allocsim.simulation import Drive, Observer, Plan, Progress, SimulatedOom, Start, fold_allocated
from allocsim.state import SegmentState
from allocsim.units import round_up


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """Memory of the card during one phase of a program, in bytes.

    At the end of a phase, a program may release memory ("sleep") and obtain it again at the
    beginning of its next phase.

    peak: largest use of the card by all processes.
    own_peak: largest use of the card by the program's process, including its CUDA context.
    kept: bytes that the process holds after the release at the end of the phase; if a request
        failed, bytes that it held then.
    released: bytes that the process released at the end of the phase.
    woken: previously released bytes that the process obtained again at the beginning of the phase.
    host_copy: bytes of host memory that hold a copy of the released memory.
    """

    phase: Phase
    peak: int
    own_peak: int
    kept: int
    released: int = 0
    woken: int = 0
    host_copy: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Lack of memory at a request, or when a program starts or wakes up; sizes are in bytes.

    phase: index of the phase that failed.
    entry: index of the request's entry in the program's recording; None for a start or wake-up.
    wanted: size of the failed request, or memory that the start or wake-up needs.
    free: unused memory of the card.
    held: memory of the card that each process uses.
    needed: size of the smallest card on which the request, start or wake-up would succeed.
    """

    phase: int
    entry: int | None
    wanted: int
    free: int
    held: tuple[int, ...]
    needed: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class CardRun:
    """Result of a replay of all programs on one card, in bytes.

    memory: memory of the card; None for an unlimited card.
    peak: largest use of the card by all processes.
    peak_phase, peak_entry: index of the phase, and entry of its recording, at the peak; the entry
        is None if the peak is reached when a program starts or wakes up.
    held_at_peak: use of the card by each process at the peak.
    own_peaks: largest use of the card by each process.
    lower_bound: memory below which a card cannot be sufficient.
    failure: lack of memory that ended the replay; None if every request succeeded.
    steps: number of replayed allocator calls (requests, frees and others).
    """

    memory: int | None
    peak: int
    peak_phase: int
    peak_entry: int | None
    held_at_peak: tuple[int, ...]
    own_peaks: tuple[int, ...]
    lower_bound: int
    phases: tuple[PhaseRun, ...]
    failure: Failure | None
    steps: int


@dataclass(slots=True)
class _Process:
    drive: Drive
    context: int
    is_started: bool = False
    asleep: int = 0

    @property
    def allocator(self) -> ReplayAllocator:
        return self.drive.allocator

    @property
    def held(self) -> int:
        return self.allocator.device.used + self.context if self.is_started else 0


class _StopError(Exception):
    pass


class Card(Observer):
    """Replay of all programs on one card.

    memory: bytes of the card; None for an unlimited card.
    threads: True if the programs are threads of one process.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        phases: Sequence[Phase],
        turns: Sequence[Turn],
        memory: int | None,
        *,
        threads: bool = False,
    ) -> None:
        self._programs, self._phases, self._turns = programs, phases, turns
        self._memory, self._threads = memory, threads
        self._ends: tuple[int, ...] = ()
        if threads:
            plan, self._ends = merged(programs, phases, turns)
            context = max(each.context for each in programs)
            drive = self._drive(programs[0], Start.REALLOCATED, plan=plan)
            self._processes = [_Process(drive, context)]
        else:
            starts = [each.prepared.start_under(each.setting, memory) for each in programs]
            self._processes = [
                _Process(self._drive(each, start), each.context)
                for each, start in zip(programs, starts, strict=True)
            ]
        self._phase = self._others = self._peak = self._lower_bound = 0
        self._peak_at: tuple[int, int | None] = (0, None)
        self._held_at_peak: tuple[int, ...] = ()
        self._own_peaks = [0] * len(self._processes)
        self._runs: dict[int, PhaseRun] = {}
        self._failure: Failure | None = None

    def _drive(self, program: Program, start: Start, plan: Plan | None = None) -> Drive:
        prepared, setting = program.prepared, program.setting
        steps = program.plan if plan is None else plan
        allocator = prepared.allocator(
            setting,
            self._memory,
            limit=prepared.limit_for(setting, self._memory, steps),
            start=start,
        )
        # The plan for threads already requests the blocks from before the recordings (`merged`).
        lays_out = prepared.start if start is Start.REALLOCATED and plan is None else ()
        return Drive(
            allocator,
            steps,
            len(prepared.trace),
            dictates=False,
            observers=(self,),
            folder=fold_allocated,
            lays_out=lays_out,
            address_events=prepared.addresses.events if plan is None else (),
        )

    @collector_paused()
    def run(self, progress: Progress | None = None) -> CardRun:
        last = {turn.phase: number for number, turn in enumerate(self._turns)}
        steps = 0
        try:
            for number, turn in enumerate(self._turns):
                self._begin(turn.phase)
                drive = self._process.drive
                first, end = turn.first, turn.end
                if self._threads:
                    first, end = self._ends[number - 1] if number else 0, self._ends[number]
                retries = self._process.allocator.calls.retries
                try:
                    drive.run_steps(first, end)
                finally:
                    self._count_retries(self._process.allocator.calls.retries - retries)
                steps += turn.end - turn.first
                if last[turn.phase] == number:
                    self._sleep()
                if progress is not None:
                    progress(number + 1, len(self._turns))
        except _StopError:
            steps += turn.first
        runs = tuple(self._runs[number] for number in sorted(self._runs))
        return CardRun(
            memory=self._memory,
            peak=self._peak,
            peak_phase=self._peak_at[0],
            peak_entry=self._peak_at[1],
            held_at_peak=self._held_at_peak,
            own_peaks=tuple(self._own_peaks),
            lower_bound=self._lower_bound,
            phases=runs,
            failure=self._failure,
            steps=steps,
        )

    # -- one phase --------------------------------------------------------------------------

    @property
    def _index(self) -> int:
        return 0 if self._threads else self._phases[self._phase].program

    @property
    def _process(self) -> _Process:
        return self._processes[self._index]

    def _begin(self, phase: int) -> None:
        self._phase = phase
        process = self._process
        device = process.allocator.device
        self._others = sum(each.held for each in self._processes if each is not process)
        starting = 0 if process.is_started else process.context + device.used
        room = (self._memory or UNLIMITED_DEVICE) - self._others - process.held
        woken = process.asleep
        if starting + woken > room:
            self._fail(None, starting + woken, room)
        process.is_started, process.asleep = True, 0
        device.used += woken
        device.context_memory = self._others + process.context
        if phase not in self._runs:
            self._runs[phase] = PhaseRun(self._phases[phase], 0, 0, 0, woken=woken)
        self._update_peaks(None)

    def _sleep(self) -> None:
        phase, process, run = self._phases[self._phase], self._process, self._runs[self._phase]
        sleep, allocator, copy = phase.sleep, process.allocator, 0
        before = process.held
        if sleep not in (Sleep.NONE, Sleep.EXIT):
            allocator.empty_cache()  # every other kind of sleep releases cached memory
        if sleep is Sleep.EXIT:
            process.is_started = False
        elif sleep is Sleep.ALL:
            process.asleep = allocator.device.used
        elif sleep.is_of_pools:
            number = phase.program
            pools = self._programs[number].mempools
            if self._threads:
                pools = tuple(pool_in(number, pool) for pool in pools)
            segments = [each for each in allocator.segments() if each.pool_id in pools]
            process.asleep = sum(map(_pages, segments))
            if sleep is Sleep.LEVEL1 and pools:
                copy = sum(_pages(each) for each in segments if each.pool_id == pools[0])
        allocator.device.used -= process.asleep
        self._runs[self._phase] = replace(
            run, kept=process.held, released=before - process.held, host_copy=copy
        )

    def _count_retries(self, retries: int) -> None:
        run = self._runs[self._phase]
        self._runs[self._phase] = replace(
            run, kept=self._process.held, retries=run.retries + retries
        )

    # -- observer ---------------------------------------------------------------------------

    def grew(self, allocator: ReplayAllocator, entry: int) -> None:
        del allocator
        self._update_peaks(entry)

    def out_of_memory(
        self, allocator: ReplayAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None:
        del allocator, blocks
        if not oom.is_recorded:
            wanted = oom.requested_bytes or oom.rounded_bytes
            self._fail(oom.entry, wanted, oom.free_bytes, oom.needed_bytes, oom.message)

    def _update_peaks(self, entry: int | None) -> None:
        process, index = self._process, self._index
        own = process.held
        held, run = self._others + own, self._runs[self._phase]
        if held > run.peak or own > run.own_peak:
            self._runs[self._phase] = replace(
                run, peak=max(held, run.peak), own_peak=max(own, run.own_peak)
            )
        self._own_peaks[index] = max(own, self._own_peaks[index])
        if held > self._peak:
            self._peak, self._peak_at = held, (self._phase, entry)
            self._held_at_peak = tuple(each.held for each in self._processes)
            needed = sum(
                each.context + (0 if each.asleep else each.allocator.allocated_bytes)
                for each in self._processes
                if each.is_started
            )
            self._lower_bound = max(needed, self._lower_bound)

    def _fail(
        self, entry: int | None, wanted: int, free: int, needed: int = 0, message: str = ""
    ) -> None:
        total = self._memory or UNLIMITED_DEVICE
        self._failure = Failure(
            phase=self._phase,
            entry=entry,
            wanted=wanted,
            free=free,
            held=tuple(each.held for each in self._processes),
            needed=needed or total - free + wanted,
            message=message,
        )
        raise _StopError


def _pages(segment: SegmentState) -> int:
    size = segment.total_size
    return size if segment.is_expandable else round_up(size, PAGE)
