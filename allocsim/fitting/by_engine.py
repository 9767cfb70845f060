"""Verdict on whether a task fits a GPU, with the margin and the memory that it needs.

An engine is a method to answer: "program" runs the task's program on PyTorch, "laws" computes the
program's requests by formulas, and "formula" estimates a range.  The first of the three that can
answer is used, but an engine that the user requests is never replaced by another.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from allocsim._fast_numpy import any_of
from allocsim.collector import collector_paused
from allocsim.errors import ConfigError, UnavailableError
from allocsim.fitting.by_formula import Estimate, estimate
from allocsim.fitting.by_law import RunsByLaw, run_by_law
from allocsim.fitting.fit_result import Drift, Fit, drift_of_run
from allocsim.fitting.model import UserModel
from allocsim.fitting.notes import (
    notes_of,
    notes_of_law,
    notes_of_routing,
    notes_of_run,
    notes_of_speed,
    release_note,
)
from allocsim.fitting.program import Missing, libraries_of, program_of
from allocsim.fitting.run_result import (
    Ran,
    find_install,
    needed_room,
    ran_on,
    replay_on,
    run_program,
)
from allocsim.fitting.task import Task
from allocsim.phantom import Gpu, context_range, named_gpu
from allocsim.recording import Action, completes_at_once
from allocsim.replaying import effects_on
from allocsim.units import TIB

AT_ONCE = 2
"""Number of GPUs whose programs run at the same time; each program occupies a CPU core."""


class RunOptions(TypedDict, total=False):
    """Arguments of `fit` that choose the engine (method of the answer) and configure a run."""

    engine: str
    conf: str | None
    python: str | None
    torch_version: str | None
    transformers: str | None


def missing_package(engine: str, python: str | None, task: Task) -> Missing | None:
    """Return the package to install in the interpreter `python` to run the program of `task`.

    Return None if all packages are installed. Also return None if `engine` is not "auto", or if the
    task generates images: nothing is checked then. Raises UnavailableError if `python` is given and
    has no PyTorch.
    """
    if engine != "auto" or task.generates:
        return None
    try:
        install = find_install(python)
    except UnavailableError as error:
        if python is not None:
            raise
        return Missing("PyTorch", str(error), "pip install 'allocsim[fit]'")
    lacking = [name for name in libraries_of(task) if name in install.lacks]
    if not lacking:
        return None
    names = " and ".join(lacking)
    return Missing(names, f"{install.python} has no {names}", f"pip install {' '.join(lacking)}")


def engine_for(
    engine: str,
    missing: Missing | None,
    task: Task,
    gpu: Gpu,
    by_law: RunsByLaw | None = None,
) -> tuple[str, str]:
    """Return the engine that answers for `task` on `gpu`, and text on why no better one can.

    engine: requested engine; "auto" tries "program" (a run), "laws" and "formula", in this order.
    missing: package without which the program cannot run; None if it can.
    by_law: requests of the task that were already computed; None to compute them.
    """
    if engine != "auto":
        return engine, ""
    if task.generates:
        return "formula", ""
    if missing is None:
        return "program", ""
    lacks, better = f"{missing.name} is missing", f"{missing.install} runs the program itself"
    without = (by_law or RunsByLaw(task)).why_none(gpu)
    if not without:
        return "laws", f"{lacks}; {better}"
    try:
        estimate(task, gpu)
    except ConfigError as error:
        text = f"{missing.why}; without {missing.name}: {without}; {error}"
        raise UnavailableError(text) from None
    return "formula", f"{lacks}, and {without}; {better}"


def runner_for(
    task: Task, gpu: Gpu, **how: Unpack[RunOptions]
) -> Callable[[Task, Gpu], Ran | Estimate]:
    """Return a function that runs a task on a GPU, by the engine that answers for these two."""
    engine = how.pop("engine", "auto")
    missing = missing_package(engine, how.get("python"), task)
    engine, reason = engine_for(engine, missing, task, gpu)
    if engine == "formula":
        return partial(estimate, reason=reason, conf=how.get("conf"))
    return partial(run_exactly, engine, **how)


def run_exactly(
    engine: str, task: Task, gpu: Gpu, /, *, transformers: str | None = None, **how: Any
) -> Ran:
    """Run the program of `task` on a simulated `gpu`, or replay the requests that formulas give.

    engine: "program" for a run, "laws" for the formulas.
    transformers: release that the formulas are meant for; ConfigError if it is given with a run.
    how: arguments of `run_program`; with "laws", all but `conf` and `keep` are ignored.
    """
    if engine == "laws":
        return run_by_law(task, gpu, conf=how.get("conf"), keep=how.get("keep"))
    if transformers is not None:
        raise ConfigError(
            f"transformers {transformers} applies to laws (--engine laws) only; a program uses the "
            "version that its Python has"
        )
    return run_program(task, gpu, **how)


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
    """Report whether `task` fits `gpu`, with the margin and the memory that it needs.

    gpu: a card or its name, such as "RTX 4090".
    engine: "program" runs the task on real PyTorch with a phantom (simulated) GPU; "laws" computes
        the same requests without PyTorch; "formula" estimates a range. "auto" chooses the first of
        them that can answer.
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    python: interpreter with a CUDA build of PyTorch; default: this one, or the one on the PATH.
    torch_version: intended release of PyTorch; a note reports if another release ran.
    transformers: intended release of transformers; with "laws", a note reports if the laws are for
        another. Default: the installed release.
    keep: file to which the recording of the requests is written; None to write none.
    host_spill: bytes of host memory that the driver lends to the GPU.
    values: True to compute values of small integer and boolean tensors; others have no values.

    Raises UnavailableError if PyTorch is missing and nothing else can answer. Raises ConfigError if
    the program fails for a reason other than memory, or if the requested engine cannot answer.
    """
    (found,) = fit_cards(
        task,
        [named_gpu(gpu) if isinstance(gpu, str) else gpu],
        keep=keep,
        host_spill=host_spill,
        values=values,
        engine=engine,
        conf=conf,
        python=python,
        torch_version=torch_version,
        transformers=transformers,
    )
    return found


def fit_cards(
    task: Task,
    gpus: Sequence[Gpu],
    *,
    keep: Path | None = None,
    host_spill: int = 0,
    values: bool = True,
    **how: Unpack[RunOptions],
) -> list[Fit | Estimate]:
    """Report whether `task` fits each of several cards; the other arguments are those of `fit`."""
    engine = how.pop("engine", "auto")
    missing = missing_package(engine, how.get("python"), task)
    text, conf = "" if task.generates else program_of(task), how.get("conf")
    by_law = RunsByLaw(task, conf)

    def answered(gpu: Gpu) -> Fit | Estimate:
        chosen, reason = engine_for(engine, missing, task, gpu, by_law)
        if chosen == "formula":
            if keep is not None or host_spill:
                what = "recording to keep" if keep is not None else "replay with host memory"
                raise ConfigError(f"a formula makes no {what}; it needs a program or a law")
            return estimate(task, gpu, reason, conf)
        run: Callable[..., Ran] = by_law.run
        if chosen == "program":
            run = partial(run_exactly, chosen, task, values=values, **how)
        many, is_law = len(gpus) > 1, chosen == "laws"
        setup = _Setup(run, gpu, how, keep, host_spill, values, task, many, is_law)
        return _answer(text, setup)

    if engine == "laws" or missing:
        return list(map(answered, gpus))  # all in this process, which cannot compute two at once
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(answered, gpus))


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
    """Run a command line on `gpu` and report whether it fits; other arguments: those of `fit`."""
    run = partial(run_program, command, conf=conf, values=values)
    how = RunOptions(conf=conf, torch_version=torch_version)
    return _answer(shlex.join(command), _Setup(run, gpu, how, keep, host_spill, values))


@dataclass(frozen=True, slots=True)
class _Setup:
    """Arguments of one call of `fit`: a program, its options and a GPU.

    run: function that runs the program on a card. It takes these arguments of `run_program`: `keep`
        (file for the recording), `work` (time at which a stream completes its work: "when-waited"
        or "at-once") and `routing` (distribution of tokens over experts, such as "skewed").
    how: arguments of `fit` that configure the run.
    keep, host_spill, values: arguments of `fit`.
    is_one_of_many: True if several cards are compared.
    is_law: True if `run` evaluates a law (formulas for the requests) instead of the program.
    """

    run: Callable[..., Ran]
    gpu: Gpu
    how: RunOptions
    keep: Path | None
    host_spill: int
    values: bool
    task: Task | None = None
    is_one_of_many: bool = False
    is_law: bool = False

    @property
    def endless(self) -> Gpu:
        return replace(self.gpu, memory=TIB)

    @property
    def is_blind(self) -> bool:
        # True if the program does not react to the memory that is left. Convolutions retry with
        # another algorithm after an out-of-memory error, compilers benchmark kernels, and user code
        # may do anything. The requests of a law are fixed.
        task = self.task
        return self.is_law or not (
            task is None or isinstance(task.model, UserModel) or task.model.sees or task.compiles
        )

    def rerun(self, unknown: str, **how: str) -> tuple[Ran | None, list[str]]:
        try:
            return self.run(self.gpu, **how), []
        except (ConfigError, UnavailableError) as error:
            return None, [f"{unknown} is unknown: {error}"]


@collector_paused()
def _answer(text: str, setup: _Setup) -> Fit:
    gpu, task = setup.gpu, setup.task
    ran, unlimited = _runs(setup)
    recommendation = lent = least_room = None
    if unlimited is not None:
        from allocsim.replaying import Trials  # noqa: PLC0415  (slow; not needed if it fits)

        prepared = unlimited.prepared
        trials = Trials(prepared, None, effects_on(prepared))
        # No setting helps if more is in use at once than the card has.
        if unlimited.peak_allocated_bytes <= gpu.room:
            from allocsim.recommend import Case, recommend  # noqa: PLC0415  (slow; rarely needed)

            case = Case(trials, replay_on(gpu, unlimited))
            recommendation = recommend([case], prepared.recorded, in_full=False)
        # With many cards, those that cannot hold what is in use at once need no exact size.
        if not setup.is_one_of_many or unlimited.peak_allocated_bytes <= gpu.room:
            least_room = needed_room(unlimited, ran, trials)
        if setup.host_spill:
            lent = replay_on(gpu, unlimited, setup.host_spill)
    keeping_up = skewed = None
    speed_notes, routing_notes = list[str](), list[str]()
    if not setup.is_law and _waits(ran):
        unknown = "the peak on a card that keeps up with the program"
        keeping_up, speed_notes = setup.rerun(unknown, work="at-once")
    provenance = ran.prepared.provenance
    if provenance is not None and provenance.routing:
        unknown = "the peak if all tokens choose the same experts"
        skewed, routing_notes = setup.rerun(unknown, routing="skewed")
    torch_version, transformers = setup.how.get("torch_version"), setup.how.get("transformers")
    drift = None if task is None else drift_of_run(ran, task, torch_version, transformers)
    parting = ran.device_run.parting
    is_computed = setup.values and ran.engine == "program"
    notes = (
        *([] if parting is None else [str(parting)]),
        *release_note(torch_version, ran.torch_version),
        *notes_of(task, gpu, ran.engine, is_computed=is_computed, is_routed=skewed is not None),
        *notes_of_law(ran, transformers, drift),
        *notes_of_run(task, provenance),
        *notes_of_speed(ran, keeping_up),
        *speed_notes,
        *notes_of_routing(ran, skewed),
        *routing_notes,
    )
    return Fit(
        task=task,
        program=text,
        conf=setup.how.get("conf"),
        ran=ran,
        unlimited=unlimited,
        lent=lent,
        recommendation=recommendation,
        keeping_up=keeping_up,
        skewed=skewed,
        notes=notes,
        fits=_verdict(gpu, ran, unlimited, least_room, [keeping_up, skewed], drift),
        least_room=least_room,
        drift=drift,
    )


def _verdict(  # noqa: PLR0917
    gpu: Gpu,
    ran: Ran,
    unlimited: Ran | None,
    least_room: int | None,
    others: Sequence[Ran | None],
    drift: Drift | None,
) -> bool | None:
    # `others` are runs with other timing or other experts, which may end differently.
    low, high = context_range(gpu)
    if any(each and each.is_out_of_memory != ran.is_out_of_memory for each in others):
        return None
    if drift is not None and drift.is_known:
        needed = least_room if ran.is_out_of_memory else ran.peak_reserved_bytes
        if needed is None and unlimited is not None:
            needed = unlimited.peak_allocated_bytes  # more than the card has
        if needed is not None:
            least, most = drift.of(needed)
            fits = most + high <= gpu.memory
            return fits or (None if least + low <= gpu.memory else False)
    if ran.is_out_of_memory:
        return None if least_room is not None and least_room + low <= gpu.memory else False
    if ran.peak_reserved_bytes + high <= gpu.memory:
        return True
    tight = replace(gpu, context_memory=high)
    return True if replay_on(tight, ran).stopped_at is None else None


def _runs(setup: _Setup) -> tuple[Ran, Ran | None]:
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


def _waits(ran: Ran) -> bool:
    trace = ran.prepared.trace
    requested = any_of(trace.action[ran.entry :], (Action.FREE_REQUESTED,))
    at_once = completes_at_once(trace.action, trace.addr)[ran.entry :]
    return int(np.count_nonzero(requested)) != int(np.count_nonzero(at_once))
