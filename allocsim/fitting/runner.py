"""Choice of the engine that answers: the program on PyTorch, a law of its requests, or a formula.

Rule: the most exact engine that can answer does. Program and law give the same bytes for the same
task; a formula gives a range. A requested engine is never replaced by another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.by_law import run_by_law, why_no_law
from allocsim.fitting.estimate import Estimate, estimate
from allocsim.fitting.run_result import Ran, find_python, run_program
from allocsim.fitting.task import Task
from allocsim.phantom import Gpu, UnavailableError

ENGINES = ("auto", "program", "laws", "formula")
_BETTER = "pip install 'allocsim[fit]' runs the program itself"


@dataclass(frozen=True, slots=True)
class Choice:
    """Engine that answers a question.

    engine: "program", "laws" or "formula".
    reason: why no more exact engine answers and what would change that; "" for the program, and
        for a requested engine.
    """

    engine: str
    reason: str = ""


def missing_pytorch(engine: str, python: str | None) -> str:
    """Return a sentence on why PyTorch cannot run here; "" if it can.

    The result is also "" if `engine` is not "auto".

    Raises UnavailableError if the interpreter `python` was requested and has no PyTorch.
    """
    if engine != "auto":
        return ""
    try:
        find_python(python)
    except UnavailableError as error:
        if python is not None:
            raise
        return str(error)
    return ""


def engine_for(engine: str, missing: str, task: Task, gpu: Gpu) -> Choice:
    """Return the engine that answers whether `task` fits `gpu`.

    engine: one of `ENGINES`; "auto" chooses the program, a law if PyTorch is missing, or a formula
        if the task has no law either.
    missing: result of `missing_pytorch`.

    Raises UnavailableError if no engine can answer.
    """
    if engine != "auto":
        return Choice(engine)
    if not missing:
        return Choice("program")
    without = why_no_law(task, gpu)
    if not without:
        return Choice("laws", f"PyTorch is missing; {_BETTER}")
    try:
        estimate(task, gpu)
    except ConfigError as error:
        raise UnavailableError(f"{missing}; without PyTorch: {without}; {error}") from None
    return Choice("formula", f"PyTorch is missing, and {without}; {_BETTER}")


def runner_for(
    task: Task, gpu: Gpu, engine: str, *, conf: str | None, **how: Any
) -> Callable[[Task, Gpu], Ran | Estimate]:
    """Return a function that runs a task on a card, by the engine that answers `task` on `gpu`.

    conf, how: `conf`, `python`, `torch_version` and `transformers` of `fit`.
    """
    missing = missing_pytorch(engine, how["python"])
    choice = engine_for(engine, missing, task, gpu)
    if choice.engine == "formula":
        return partial(estimate, reason=choice.reason, conf=conf)
    return partial(run_exactly, choice.engine, conf=conf, **how)


def run_exactly(
    engine: str, task: Task, gpu: Gpu, *, transformers: str | None = None, **how: Any
) -> Ran:
    """Run `task` on `gpu` with the engine "program" or "laws".

    transformers: as in `fit`, for laws.
    how: other arguments of `run_program`. Laws use `conf` and `keep`.
    """
    if engine == "laws":
        conf, keep = how.get("conf"), how.get("keep")
        return run_by_law(task, gpu, conf=conf, keep=keep)
    if transformers is not None:
        raise ConfigError(
            f"transformers {transformers} applies to laws (--engine laws) only; a program uses the "
            "version that its Python has"
        )
    return run_program(task, gpu, **how)
