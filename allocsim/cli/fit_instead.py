"""Answer of `allocsim fit` by formula, where PyTorch is missing and the program has no law.

Rule: the formula gets the same question. If an option has no effect on it, there is no answer.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from allocsim.cli.fit_parallel import run_by_formula
from allocsim.cli.fit_served import run_served
from allocsim.cli.fit_ways import refuse_ineffective, way_of
from allocsim.cli.streams import say
from allocsim.cli.usage import UsageError
from allocsim.errors import ConfigError

if TYPE_CHECKING:
    from allocsim.fitting import Task
    from allocsim.phantom import Gpu

_NOTE = (
    "allocsim: an estimate by formula, because PyTorch is missing and this program has no law; "
    "with pip install 'allocsim[fit]' the program itself runs\n"
)


def run_instead(
    arguments: argparse.Namespace, task: Task | None, gpus: list[Gpu], error: Exception
) -> int:
    """Answer by formula, and return the exit code.

    error: reason for the missing answer, raised if no formula gives one.
    """
    if task is None or arguments.engine != "auto" or arguments.python is not None:
        raise error
    asked = _served(arguments) if arguments.serve else _trained(arguments, task)
    asked.host_spill = asked.host_spill or None
    asked.multiple_of = None
    try:
        refuse_ineffective(asked, way_of(asked))
        code = (run_served if arguments.serve else run_by_formula)(asked, gpus)
    except (ConfigError, UsageError):
        raise error from None
    say(_NOTE)
    return code


def _served(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the question to the formula of transformers, which has weights instead of a dtype."""
    changed = {"server": "transformers", "attention": None, "dtype": None}
    if arguments.dtype == "fp32":
        changed["weights"] = "fp32"
    if arguments.attention == "eager":  # the formula has no attention scores
        changed["attention"] = "eager"
    return argparse.Namespace(**{**vars(arguments), **changed})


def _trained(arguments: argparse.Namespace, task: Task) -> argparse.Namespace:
    """Return the question to the formula of training, with the program's usual values."""
    changed = {"engine": "formula", "kernels": "eager", "seq": task.seq, "dtype": task.dtype}
    return argparse.Namespace(**{**vars(arguments), **changed})
