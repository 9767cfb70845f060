"""Whether a task fits a card, by how much, and what it would need.

Rule: the answer is that of a run on the card asked for.  What a task needs that does not fit is
the smallest card on which the requests of a run of the same program, on the same card without a
limit on its memory, are all answered.  One run serves for both where the program cannot tell the
two apart before it runs out of memory: its requests are then replayed on the card as it is
(`ran_on`).  Where freed blocks wait for other streams, how long is a matter of the card's speed:
that run has them wait as long as they can, another as little.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from allocsim.arrays import any_of
from allocsim.display import Shown
from allocsim.engine import DeviceRun, Trials
from allocsim.errors import ConfigError
from allocsim.measures import Case, Recommendation, effects_on, recommend
from allocsim.phantom import CONTEXT_MEMORY_SEEN, Gpu, UnavailableError, find_gpu
from allocsim.questions.fit.answering import runner_for
from allocsim.questions.fit.model import UserModel
from allocsim.questions.fit.notes import notes_of, notes_of_law, notes_of_run, release_note
from allocsim.questions.fit.program import program_of
from allocsim.questions.fit.ran import Ran, ran_on, replay_on, run_program
from allocsim.questions.fit.shortage import Failure, failure_of, needed_room
from allocsim.questions.fit.task import Task
from allocsim.trace import Action, completes_at_once
from allocsim.units import TIB, format_size

__all__ = ["Fit", "fit", "fit_command"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fit(Shown):
    """The answer.

    task: None for a program of the user's own, `program` its command line.
    program: its text, or its command line.
    ran: the run on the card.
    unlimited: where it does not fit, the run of the same program on a card without end; None if
    that runs out of memory too.
    lent: where it does not fit and the driver lends the host's memory, the same requests on the
    card with that; None else.
    least_room: where it does not fit, bytes beside the context of the smallest card on which it
    does; None if that is not known.
    recommendation: where it does not fit, the setting under which it does, if there is one.
    keeping_up: where freed blocks waited for other streams, the run on a card that is done with its
    work as soon as it is given; `ran` is on one that is done only when something waits for it.
    skewed: where sizes depend on which experts tokens choose, the run in which all tokens choose
    the same ones; `ran` spreads them evenly.
    notes: what is not known, in sentences.
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
        """The card."""
        return self.ran.gpu

    @property
    def fits(self) -> bool:
        """Whether the program came to its end."""
        return not self.ran.is_out_of_memory

    @property
    def runs_on_loan(self) -> bool:
        """Whether it comes to its end with the host's memory, and not without."""
        return self.lent is not None and not self.lent.ooms

    @property
    def needed_bytes(self) -> int | None:
        """Bytes beside the context that are enough: where it fits, those reserved at the peak, else
        those of the smallest card on which it does; None if that is not known."""
        return self.ran.peak_reserved_bytes if self.fits else self.least_room

    @property
    def failure(self) -> Failure | None:
        """The error that ended the program; None where it came to its end."""
        return failure_of(self.ran)

    @property
    def room_bytes(self) -> int:
        """What the card has for the allocator."""
        return self.gpu.room

    @property
    def spare_bytes(self) -> int:
        """What is left of that at the peak; negative where it does not fit."""
        return self.room_bytes - (self.needed_bytes or self.ran.peak_reserved_bytes)

    @property
    def process_bytes(self) -> tuple[int, int]:
        """The least and the most that the process holds of the card at its peak."""
        low, high = CONTEXT_MEMORY_SEEN
        peak = self.needed_bytes or self.ran.peak_reserved_bytes
        return peak + low, peak + high

    def headline(self) -> str:
        """Whether it fits, and by how much."""
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
        """Memory."""
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
    """Whether `task` fits `gpu`, by running it there.

    gpu: a card, or its name, as "RTX 4090".  conf: PYTORCH_CUDA_ALLOC_CONF.
    engine: "program" runs it over PyTorch, "laws" without (`by_law.py`); "auto" takes laws where
    PyTorch is missing.
    python: an interpreter with a CUDA build of PyTorch (default: this one, or that on the PATH).
    torch_version: the release that is meant; another one that has to do is a note.
    transformers: likewise, of laws (default: the one installed, else that of the first laws).
    keep: a file for the recording.  host_spill: bytes of the host's memory that the driver lends.
    values: whether small integers and booleans of a program are computed.
    Raises UnavailableError without PyTorch, ConfigError if the program fails otherwise than by
    memory, or has no law.
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
    way = _Way(
        run, card, conf, torch_version, keep, host_spill, transformers, _is_blind(task), values
    )
    return _answer(task, program_of(task), way)


def _is_blind(task: Task) -> bool:
    """Whether the program asks for the same memory whatever the card has left, up to an error.

    Convolutions are tried with another algorithm when one runs out of memory, compilers try their
    kernels out, and what a user's own code does is not known.
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
    """`fit` of any program: the command line that starts it."""
    run = partial(run_program, command, conf=conf, values=values)
    way = _Way(run, gpu, conf, torch_version, keep, host_spill, values=values)
    return _answer(None, shlex.join(command), way)


@dataclass(frozen=True, slots=True)
class _Way:
    """How a program is run, and where.

    run: on a card; `keep`, `work` and `routing` as `run_program` has them.  is_blind: to what the
    card has left.  values: whether small integers and booleans of a program are computed.
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
        """The card, with more memory than anybody has beside the same context."""
        return replace(self.gpu, memory=TIB)


def _answer(task: Task | None, text: str, way: _Way) -> Fit:
    gpu = way.gpu
    ran, unlimited = _runs(way)
    recommendation = lent = least_room = None
    if unlimited is not None:
        prepared = unlimited.prepared
        trials = Trials(prepared, None, effects_on(prepared))
        recommendation = _recommended(unlimited, gpu, trials)
        least_room = needed_room(unlimited, gpu, trials)
        if way.host_spill:
            lent = replay_on(gpu, unlimited, way.host_spill)
    keeping_up, untold = _keeping_up(way, ran)
    skewed, unrouted = _skewed(way, ran)
    parting = ran.device_run.parting
    notes = (
        *([] if parting is None else [str(parting)]),
        *release_note(way.torch_version, ran.torch_version),
        *notes_of(
            task,
            gpu,
            ran.engine,
            is_computed=way.values and ran.engine == "program",
            is_routed=skewed is not None,
        ),
        *notes_of_law(ran, way.transformers),
        *notes_of_run(task, ran.prepared.provenance),
        *_range(ran, keeping_up),
        *untold,
        *_routed(ran, skewed),
        *unrouted,
        *_close(ran, gpu),
    )
    return Fit(
        task=task,
        program=text,
        conf=way.conf,
        ran=ran,
        unlimited=unlimited,
        lent=lent,
        recommendation=recommendation,
        keeping_up=keeping_up,
        skewed=skewed,
        notes=notes,
        least_room=least_room,
    )


def _runs(way: _Way) -> tuple[Ran, Ran | None]:
    """The run on the card and, if it does not fit and does come to an end, that without."""
    unlimited = None
    if way.is_blind and way.keep is None:
        unlimited = way.run(way.endless)
    if unlimited is not None and not unlimited.is_out_of_memory:
        ran = ran_on(way.gpu, unlimited)
    else:
        ran = way.run(way.gpu, keep=way.keep)
    if not ran.is_out_of_memory:
        return ran, None
    if unlimited is None:
        unlimited = way.run(way.endless)
    return ran, None if unlimited.is_out_of_memory else unlimited


def _keeping_up(way: _Way, ran: Ran) -> tuple[Ran | None, list[str]]:
    """The run on a card that keeps up with the program, None where no block waits, and in
    sentences why it is not known."""
    if not _waits(ran):
        return None, []
    try:
        return way.run(way.gpu, work="at-once"), []
    except (ConfigError, UnavailableError) as error:
        return None, [f"what a card holds that keeps up with the program is not known: {error}"]


def _waits(ran: Ran) -> bool:
    """Whether blocks that were freed waited for other streams, once it counts."""
    trace = ran.prepared.trace
    requested = any_of(trace.action[ran.entry :], (Action.FREE_REQUESTED,))
    at_once = completes_at_once(trace.action, trace.addr)[ran.entry :]
    return int(np.count_nonzero(requested)) != int(np.count_nonzero(at_once))


def _range(ran: Ran, keeping_up: Ran | None) -> Iterator[str]:
    """What the card's speed decides."""
    if keeping_up is None or keeping_up.peak_reserved_bytes == ran.peak_reserved_bytes:
        return
    if ran.is_out_of_memory or keeping_up.is_out_of_memory:
        other = "does not fit either" if keeping_up.is_out_of_memory else "fits"
        yield (
            "freed blocks wait for other streams, here as long as they can: on a card that keeps "
            f"up with the program it {other}"
        )
        return
    yield (
        "freed blocks wait for other streams: this is reserved where the program runs as far "
        "ahead of the card as it can; where the card keeps up, "
        f"{format_size(keeping_up.peak_reserved_bytes)}"
    )


def _skewed(way: _Way, ran: Ran) -> tuple[Ran | None, list[str]]:
    """The run in which all tokens choose the same experts, None where no size depends on that, and
    in sentences why it is not known."""
    made = ran.prepared.provenance
    if made is None or not made.routing:
        return None, []
    try:
        return way.run(way.gpu, routing="skewed"), []
    except (ConfigError, UnavailableError) as error:
        return None, [f"what is reserved if all tokens choose the same experts is unknown: {error}"]


def _routed(ran: Ran, skewed: Ran | None) -> Iterator[str]:
    """The range that the choice of experts gives."""
    if skewed is None:
        return
    if ran.is_out_of_memory or skewed.is_out_of_memory:
        end = "does not fit" if skewed.is_out_of_memory else "fits"
        yield (
            "experts: tokens are spread evenly over the experts; if all choose the same ones, the "
            f"program {end}"
        )
        return
    low, high = sorted((ran.peak_reserved_bytes, skewed.peak_reserved_bytes))
    how = (
        f"{format_size(low)} either way"
        if low == high
        else f"{format_size(low)} to {format_size(high)}"
    )
    yield (
        "experts: tokens are spread evenly over the experts; from there to all tokens choosing the "
        f"same ones, {how} are reserved"
    )


def _close(ran: Ran, gpu: Gpu) -> Iterator[str]:
    """Whether the answer depends on how much the CUDA context takes."""
    _, high = CONTEXT_MEMORY_SEEN
    peak = ran.peak_reserved_bytes
    if not ran.is_out_of_memory and peak + high > gpu.memory:
        yield (
            f"close: it fits beside a context of {format_size(gpu.context_memory)}; one of "
            f"{format_size(high)} would leave less than the peak"
        )


def _recommended(unlimited: Ran, gpu: Gpu, trials: Trials) -> Recommendation:
    """The setting under which all that the program asks for fits the card."""
    case = Case(trials, replay_on(gpu, unlimited))
    return recommend([case], unlimited.prepared.recorded, in_full=False)
