"""Answer of whether a task fits a card, with the margin and the memory that it would need.

Rule: the answer is that of a run on the requested card. If the task does not fit, the same program
is run on the same card without a memory limit. The memory that the task needs is that of the
smallest card on which all requests of this unlimited run succeed.

One run gives both answers if the program does not react to the free memory of the card. The
requests of the unlimited run are then replayed on the limited card (`ran_on`).

A freed block that another stream still uses waits for that stream, for a time that depends on the
card's speed. In the main run such blocks wait as long as possible, in a second run as briefly as
possible.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from allocsim._fast_numpy import any_of
from allocsim._repr import Shown
from allocsim.errors import ConfigError
from allocsim.fitting.model import UserModel
from allocsim.fitting.notes import (
    notes_of,
    notes_of_context,
    notes_of_law,
    notes_of_routing,
    notes_of_run,
    notes_of_speed,
    release_note,
)
from allocsim.fitting.program import program_of
from allocsim.fitting.run_result import (
    Failure,
    Ran,
    failure_of,
    needed_room,
    ran_on,
    replay_on,
    run_program,
)
from allocsim.fitting.runner import runner_for
from allocsim.fitting.task import Task
from allocsim.phantom import CONTEXT_MEMORY_SEEN, Gpu, UnavailableError, find_gpu
from allocsim.recommend import Case, Recommendation, effects_on, recommend
from allocsim.recording import Action, completes_at_once
from allocsim.replaying import Trials
from allocsim.simulation import DeviceRun
from allocsim.units import TIB, format_size


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fit(Shown):
    """Answer of `fit`.

    task: the task, or None for a user's own program.
    program: text of the generated program, or the user's command line.
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    ran: run on the card; the card finishes its work only when the program waits for it.
    unlimited: run without a memory limit, if the task does not fit; None if that run fails, too.
    lent: replay with host memory lent by the driver, if the task does not fit; None if none is
        lent.
    recommendation: conf under which the task fits, if it does not fit as given.
    keeping_up: run on a card that finishes its work at once, if freed blocks wait for other
        streams.
    skewed: run where all tokens choose the same experts, if sizes depend on the choice; `ran`
        spreads tokens evenly.
    notes: facts that the answer cannot know, one sentence each.
    least_room: bytes without the CUDA context on the smallest card that fits the task, if it does
        not fit; None if unknown.
    """

    task: Task | None
    program: str
    conf: str | None
    ran: Ran
    unlimited: Ran | None
    lent: DeviceRun | None
    recommendation: Recommendation | None
    keeping_up: Ran | None
    skewed: Ran | None
    notes: tuple[str, ...]
    least_room: int | None = None

    @property
    def gpu(self) -> Gpu:
        return self.ran.gpu

    @property
    def fits(self) -> bool:
        """True if the program completed."""
        return not self.ran.is_out_of_memory

    @property
    def runs_on_loan(self) -> bool:
        """True if the program completes only with host memory lent by the driver."""
        return self.lent is not None and not self.lent.ooms

    @property
    def needed_bytes(self) -> int | None:
        """Bytes that suffice for the task, without the CUDA context; None if unknown.

        They are the peak of reserved memory if the task fits, else the size of the smallest card
        that fits.
        """
        return self.ran.peak_reserved_bytes if self.fits else self.least_room

    @property
    def failure(self) -> Failure | None:
        """Error that ended the program, or None if it completed."""
        return failure_of(self.ran)

    @property
    def room_bytes(self) -> int:
        """Bytes of the card that are available to the allocator."""
        return self.gpu.room

    @property
    def spare_bytes(self) -> int:
        """Bytes of the card that are available to the allocator and not reserved at the peak.

        They are negative if the task does not fit.
        """
        return self.room_bytes - (self.needed_bytes or self.ran.peak_reserved_bytes)

    @property
    def process_bytes(self) -> tuple[int, int]:
        """Lowest and highest bytes of the card that the process uses at its peak."""
        low, high = CONTEXT_MEMORY_SEEN
        peak = self.needed_bytes or self.ran.peak_reserved_bytes
        return peak + low, peak + high

    def headline(self) -> str:
        """Return the verdict and the margin, as one line."""
        name, needed = self.gpu.name, self.needed_bytes
        if self.fits:
            return f"fits {name} with {format_size(self.spare_bytes)} to spare"
        if needed is None:
            return f"does not fit {name}"
        short = format_size(max(-self.spare_bytes, 0))
        if self.lent is not None and self.lent.spill is not None and self.runs_on_loan:
            spilled = format_size(self.lent.spill.most_bytes)
            return f"runs on {name} with {spilled} of the host's memory, slower; does not fit alone"
        return f"does not fit {name}: {format_size(needed)} are needed, {short} more than it has"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Yield the names and sizes of the peaks."""
        yield "reserved at the peak", format_size(self.ran.peak_reserved_bytes)
        yield "allocated at the peak", format_size(self.ran.peak_allocated_bytes)
        low, high = map(format_size, self.process_bytes)
        yield "the process", f"{low} to {high}"


def fit(
    task: Task,
    gpu: Gpu | str,
    *,
    engine: str = "auto",
    conf: str | None = None,
    python: str | None = None,
    torch_version: str | None = None,
    transformers: str | None = None,
    keep: Path | None = None,
    host_spill: int = 0,
    values: bool = True,
) -> Fit:
    """Run `task` on `gpu` and report whether it fits.

    gpu: a card or its name, such as "RTX 4090".
    engine: "program" runs the task on PyTorch over a phantom GPU, "laws" without PyTorch
        (`by_law.py`); "auto" chooses laws if PyTorch is missing.
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    python: interpreter with a CUDA build of PyTorch; default: this one, or the one on the PATH.
    torch_version: intended release of PyTorch; a note reports if another release ran.
    transformers: intended release for laws; default: the installed release, else the first release
        with laws.
    keep: file to which the recording is written.
    host_spill: bytes of host memory that the driver lends.
    values: True to compute a program's small integers and booleans.

    Raises UnavailableError if PyTorch is missing. Raises ConfigError if the program fails for a
    reason other than memory, or if the task has no law.
    """
    card = find_gpu(gpu) if isinstance(gpu, str) else gpu
    runner = runner_for(
        task,
        card,
        engine,
        conf=conf,
        python=python,
        torch_version=torch_version,
        transformers=transformers,
    )
    run = partial(runner, task, values=values)
    setup = _Setup(
        run, card, conf, torch_version, keep, host_spill, transformers, _is_blind(task), values
    )
    return _answer(task, program_of(task), setup)


def _is_blind(task: Task) -> bool:
    """Return whether the program makes the same requests whatever memory the card has left.

    Convolutions retry with another algorithm after an out-of-memory error, compilers benchmark
    their kernels, and user code may do anything.
    """
    return not (isinstance(task.model, UserModel) or task.model.sees or task.compiles)


def fit_command(
    command: Sequence[str],
    gpu: Gpu,
    *,
    conf: str | None = None,
    torch_version: str | None = None,
    keep: Path | None = None,
    host_spill: int = 0,
    values: bool = True,
) -> Fit:
    """Run the program of a command line on `gpu` and report whether it fits.

    command: words of the command line. The other arguments are those of `fit`.
    """
    run = partial(run_program, command, conf=conf, values=values)
    setup = _Setup(run, gpu, conf, torch_version, keep, host_spill, values=values)
    return _answer(None, shlex.join(command), setup)


@dataclass(frozen=True, slots=True)
class _Setup:
    """The program, its options and the card.

    run: runs the program on a card, with the arguments `keep`, `work` and `routing` of
        `run_program`.
    is_blind: see `_is_blind`.
    values: True to compute a program's small integers and booleans.
    """

    run: Callable[..., Ran]
    gpu: Gpu
    conf: str | None
    torch_version: str | None
    keep: Path | None
    host_spill: int
    transformers: str | None = None
    is_blind: bool = False
    values: bool = True

    @property
    def endless(self) -> Gpu:
        """The same card with practically unlimited memory."""
        return replace(self.gpu, memory=TIB)


def _answer(task: Task | None, text: str, setup: _Setup) -> Fit:
    gpu = setup.gpu
    ran, unlimited = _runs(setup)
    recommendation = lent = least_room = None
    if unlimited is not None:
        prepared = unlimited.prepared
        trials = Trials(prepared, None, effects_on(prepared))
        recommendation = _recommended(unlimited, gpu, trials)
        least_room = needed_room(unlimited, gpu, trials)
        if setup.host_spill:
            lent = replay_on(gpu, unlimited, setup.host_spill)
    keeping_up, speed_notes = _keeping_up(setup, ran)
    skewed, routing_notes = _skewed(setup, ran)
    parting = ran.device_run.parting
    notes = (
        *([] if parting is None else [str(parting)]),
        *release_note(setup.torch_version, ran.torch_version),
        *notes_of(
            task,
            gpu,
            ran.engine,
            is_computed=setup.values and ran.engine == "program",
            is_routed=skewed is not None,
        ),
        *notes_of_law(ran, setup.transformers),
        *notes_of_run(task, ran.prepared.provenance),
        *notes_of_speed(ran, keeping_up),
        *speed_notes,
        *notes_of_routing(ran, skewed),
        *routing_notes,
        *notes_of_context(ran, gpu),
    )
    return Fit(
        task=task,
        program=text,
        conf=setup.conf,
        ran=ran,
        unlimited=unlimited,
        lent=lent,
        recommendation=recommendation,
        keeping_up=keeping_up,
        skewed=skewed,
        notes=notes,
        least_room=least_room,
    )


def _runs(setup: _Setup) -> tuple[Ran, Ran | None]:
    """Return the run on the card, and the unlimited run if the task does not fit.

    The second is None if the task fits, and if the unlimited run fails, too.
    """
    # If an unlimited run completes, its replay on the card replaces a second run. A recording
    # that is kept must be of a run on the card itself.
    unlimited = None
    if setup.is_blind and setup.keep is None:
        unlimited = setup.run(setup.endless)
    if unlimited is not None and not unlimited.is_out_of_memory:
        ran = ran_on(setup.gpu, unlimited)
    else:
        ran = setup.run(setup.gpu, keep=setup.keep)
    if not ran.is_out_of_memory:
        return ran, None
    if unlimited is None:
        unlimited = setup.run(setup.endless)
    return ran, None if unlimited.is_out_of_memory else unlimited


def _keeping_up(setup: _Setup, ran: Ran) -> tuple[Ran | None, list[str]]:
    """Return a run on a card that finishes its work at once, and a note if that run failed.

    The run is None if no freed block waits for another stream, and if it failed.
    """
    if not _waits(ran):
        return None, []
    try:
        return setup.run(setup.gpu, work="at-once"), []
    except (ConfigError, UnavailableError) as error:
        return None, [f"the peak on a card that keeps up with the program is unknown: {error}"]


def _waits(ran: Ran) -> bool:
    """Return whether freed blocks wait for other streams after the first counted entry."""
    trace = ran.prepared.trace
    requested = any_of(trace.action[ran.entry :], (Action.FREE_REQUESTED,))
    at_once = completes_at_once(trace.action, trace.addr)[ran.entry :]
    return int(np.count_nonzero(requested)) != int(np.count_nonzero(at_once))


def _skewed(setup: _Setup, ran: Ran) -> tuple[Ran | None, list[str]]:
    """Return a run where all tokens choose the same experts, and a note if that run failed.

    The run is None if no size depends on the choice, and if it failed.
    """
    made = ran.prepared.provenance
    if made is None or not made.routing:
        return None, []
    try:
        return setup.run(setup.gpu, routing="skewed"), []
    except (ConfigError, UnavailableError) as error:
        return None, [f"the peak if all tokens choose the same experts is unknown: {error}"]


def _recommended(unlimited: Ran, gpu: Gpu, trials: Trials) -> Recommendation:
    """Return the conf under which all requests of the program fit the card."""
    case = Case(trials, replay_on(gpu, unlimited))
    return recommend([case], unlimited.prepared.recorded, in_full=False)
