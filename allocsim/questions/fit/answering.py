"""What answers for a task: the program itself over PyTorch, or the law of its requests.

Rule: the same task comes to the same bytes by either; a law that does not hold is refused, and
nothing falls back from one to the other within a question.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from allocsim.errors import ConfigError
from allocsim.phantom import Gpu, UnavailableError
from allocsim.questions.fit.by_law import has_law, run_by_law
from allocsim.questions.fit.ran import Ran, find_python, run_task
from allocsim.questions.fit.task import Task

__all__ = ["ENGINES", "engine_for", "run_by", "runner_for"]

ENGINES = ("auto", "program", "laws")


def engine_for(
    engine: str, python: str | None, task: Task, gpu: Gpu, transformers: str | None
) -> str:
    """What answers: for "auto" the program, or laws where PyTorch is missing and there is one.

    Raises UnavailableError if PyTorch is missing and there is no law, or `python` is named and has
    none.
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
    """`run_by` with what answers for `task` on `gpu`, for tasks and cards like them; `keep` and
    `work` are left to say.  The arguments are those of `fit`."""
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
    """The run of `task` on `gpu` by "program" or "laws", with the arguments and errors of `fit`.

    routing: how tokens choose experts in a program, as `Program` has it.
    """
    if engine == "laws":
        return run_by_law(task, gpu, conf=conf, transformers=transformers, keep=keep)
    if transformers is not None:
        raise ConfigError(
            f"transformers {transformers} is for laws (--engine laws); a program runs with the one "
            "that its Python has"
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
