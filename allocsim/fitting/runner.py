"""Choice of the engine that answers: the program on PyTorch, or a law of its requests.

Rule: both engines give the same bytes for the same task. A task without a law is refused by the
engine "laws"; a question never switches from one engine to the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from allocsim.errors import ConfigError
from allocsim.fitting.by_law import has_law, run_by_law
from allocsim.fitting.run_result import Ran, find_python, run_task
from allocsim.fitting.task import Task
from allocsim.phantom import Gpu, UnavailableError

ENGINES = ("auto", "program", "laws")


def engine_for(
    engine: str, python: str | None, task: Task, gpu: Gpu, transformers: str | None
) -> str:
    """Return the engine that answers: "program" or "laws".

    engine: "program", "laws" or "auto", which chooses the program, or laws if PyTorch is missing
        and the task has a law.
    python, transformers: as in `fit`.

    Raises UnavailableError if PyTorch is missing and the task has no law, or if the interpreter
    `python` has no PyTorch.
    """
    if engine != "auto":
        return engine
    try:
        find_python(python)
    except UnavailableError:
        if python is not None or not has_law(task, gpu, transformers):
            raise
        return "laws"
    return "program"


def runner_for(
    task: Task,
    gpu: Gpu,
    engine: str,
    *,
    conf: str | None,
    python: str | None,
    torch_version: str | None,
    transformers: str | None,
) -> Callable[..., Ran]:
    """Return `run_by` with its engine and options fixed.

    The engine is chosen for `task` on `gpu`; the returned function runs similar tasks on similar
    cards. It accepts `keep`, `work`, `values` and `routing`. The arguments are those of `fit`.
    """
    return partial(
        run_by,
        engine_for(engine, python, task, gpu, transformers),
        conf=conf,
        python=python,
        torch_version=torch_version,
        transformers=transformers,
    )


def run_by(
    engine: str,
    task: Task,
    gpu: Gpu,
    *,
    conf: str | None = None,
    python: str | None = None,
    torch_version: str | None = None,
    transformers: str | None = None,
    keep: Path | None = None,
    work: str = "when-waited",
    values: bool = True,
    routing: str = "balanced",
) -> Ran:
    """Run `task` on `gpu` with the engine "program" or "laws".

    work: time at which the card finishes its work: "when-waited" or "at-once".
    routing: choice of experts in a program: "balanced" or "skewed".

    The other arguments and the errors are those of `fit`.
    """
    if engine == "laws":
        return run_by_law(task, gpu, conf=conf, transformers=transformers, keep=keep)
    if transformers is not None:
        raise ConfigError(
            f"transformers {transformers} applies to laws (--engine laws) only; a program uses the "
            "version that its Python has"
        )
    return run_task(
        task,
        gpu,
        conf=conf,
        python=python,
        torch_version=torch_version,
        keep=keep,
        work=work,
        values=values,
        routing=routing,
    )
