"""Answer of whether a task fits a card, with the margin and the memory that it would need.

Rule: the most exact engine that can answer does (`runner.py`); a formula gives an `Estimate`. Else
the answer is that of a run on the requested card. If the task does not fit, the same program
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from allocsim._fast_numpy import any_of
from allocsim.errors import ConfigError
from allocsim.fitting.by_law import requests_key
from allocsim.fitting.estimate import Estimate, estimate
from allocsim.fitting.fit_result import Fit
from allocsim.fitting.model import UserModel
from allocsim.fitting.notes import (
    notes_of,
    notes_of_law,
    notes_of_routing,
    notes_of_run,
    notes_of_speed,
    release_note,
)
from allocsim.fitting.program import program_of
from allocsim.fitting.run_result import (
    Ran,
    needed_room,
    ran_on,
    replay_on,
    run_program,
)
from allocsim.fitting.runner import engine_for, missing_pytorch, run_exactly
from allocsim.fitting.task import Task
from allocsim.phantom import Gpu, UnavailableError, context_range, find_gpu
from allocsim.recommend import Case, Recommendation, recommend
from allocsim.recording import Action, completes_at_once
from allocsim.replaying import Trials, effects_on
from allocsim.units import TIB

_AT_ONCE = 2
"""Number of cards that are answered at the same time; a program occupies a processor."""


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
) -> Fit | Estimate:
    """Report whether `task` fits `gpu`, by the most exact engine that can answer.

    gpu: a card or its name, such as "RTX 4090".
    engine: "program" runs the task on PyTorch over a phantom GPU, "laws" without PyTorch
        (`by_law.py`), "formula" estimates (`estimate.py`); "auto" chooses laws if PyTorch is
        missing, and the formula if the task has no law.
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    python: interpreter with a CUDA build of PyTorch; default: this one, or the one on the PATH.
    torch_version: intended release of PyTorch; a note reports if another release ran.
    transformers: intended release, which a note compares with that of the laws; default: the
        installed release.
    keep: file to which the recording is written.
    host_spill: bytes of host memory that the driver lends.
    values: True to compute a program's small integers and booleans.

    Raises UnavailableError if PyTorch is missing and nothing else can answer. Raises ConfigError if
    the program fails for a reason other than memory, or if the requested engine cannot answer.
    """
    (found,) = fit_cards(
        task,
        [find_gpu(gpu) if isinstance(gpu, str) else gpu],
        engine=engine,
        conf=conf,
        python=python,
        torch_version=torch_version,
        transformers=transformers,
        keep=keep,
        host_spill=host_spill,
        values=values,
    )
    return found


def fit_cards(
    task: Task,
    gpus: Sequence[Gpu],
    *,
    engine: str = "auto",
    conf: str | None = None,
    transformers: str | None = None,
    keep: Path | None = None,
    host_spill: int = 0,
    values: bool = True,
    **how: Any,
) -> list[Fit | Estimate]:
    """Return the answer of `fit` for each card.

    how: the arguments `python` and `torch_version` of `fit`.
    """
    missing = missing_pytorch(engine, how.get("python"))
    shared: dict[object, Ran] = {}
    text = program_of(task)

    def answered(gpu: Gpu) -> Fit | Estimate:
        choice = engine_for(engine, missing, task, gpu)
        if choice.engine == "formula":
            if keep is not None or host_spill:
                what = "recording to keep" if keep is not None else "replay with host memory"
                raise ConfigError(f"a formula makes no {what}; it needs a program or a law")
            return estimate(task, gpu, choice.reason, conf)
        run = partial(run_exactly, choice.engine, task, conf=conf, transformers=transformers, **how)
        if choice.engine == "program":
            run = partial(run, values=values)
        elif len(gpus) > 1:
            run = partial(_run_once, run, shared, task)
        setup = _Setup(
            run,
            gpu,
            conf,
            how.get("torch_version"),
            keep,
            host_spill,
            transformers,
            _is_blind(task),
            values,
            is_one_of_many=len(gpus) > 1,
        )
        return _answer(task, text, setup)

    if engine == "laws":
        return list(map(answered, gpus))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(answered, gpus))


def _run_once(
    run: Callable[..., Ran], shared: dict[object, Ran], task: Task, gpu: Gpu, **more: Any
) -> Ran:
    """Return the run of `task` on `gpu`; a run by law with equal requests is computed only once.

    run: function that runs a task on a card.
    shared: earlier runs by law, to which a new one is added.
    more: further arguments of `run`.
    """
    if more:
        return run(gpu, **more)
    key = (gpu.memory, *requests_key(task, gpu))
    if key not in shared:
        shared[key] = run(gpu)
    return replace(shared[key], gpu=gpu)


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
    """Program of a `fit` question with its options and its card.

    run: runs the program on a card, with the arguments `keep`, `work` and `routing` of
        `run_program`.
    is_blind: see `_is_blind`.
    values: True to compute a program's small integers and booleans.
    is_one_of_many: True if the answer is a row of a table of cards.
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
    is_one_of_many: bool = False

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
        # No setting helps if more is in use at once than the card has.
        if unlimited.peak_allocated_bytes <= gpu.room:
            recommendation = _recommended(unlimited, gpu, trials)
        # With many cards, those that cannot hold what is in use at once need no exact size.
        if not setup.is_one_of_many or unlimited.peak_allocated_bytes <= gpu.room:
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
        fits=_verdict(gpu, ran, least_room, [keeping_up, skewed]),
        least_room=least_room,
    )


def _verdict(
    gpu: Gpu, ran: Ran, least_room: int | None, others: Sequence[Ran | None]
) -> bool | None:
    """Return True if the program completes for certain, False if it fails, None if unknown.

    ran: run on the card.
    least_room: bytes of the smallest card on which the program completes; None if unknown.
    others: runs with other timing or other experts, which may end differently.
    """
    low, high = context_range(gpu)
    if any(each and each.is_out_of_memory != ran.is_out_of_memory for each in others):
        return None
    if ran.is_out_of_memory:
        return None if least_room is not None and least_room + low <= gpu.memory else False
    if ran.peak_reserved_bytes + high <= gpu.memory:
        return True
    tight = replace(gpu, context_memory=high)
    return True if replay_on(tight, ran).stopped_at is None else None


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
    """Run the program on a card that finishes its work at once; return the run and notes.

    The run is None if no freed block waits for another stream. It is also None if it failed, which
    a note then reports.
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
    """Run the program with all tokens on the same experts; return the run and notes.

    The run is None if no size depends on the choice of experts. It is also None if it failed,
    which a note then reports.
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
