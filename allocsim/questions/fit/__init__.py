"""Will it fit: a model at work, run by real PyTorch on a GPU that is not there."""

from allocsim.questions.fit.answered import Answered, ToldFront, read_answers, read_frontier
from allocsim.questions.fit.by_law import run_by_law
from allocsim.questions.fit.fit import Fit, fit, fit_command
from allocsim.questions.fit.frontier import Frontier, frontier, usual_values
from allocsim.questions.fit.largest import SIZES, Fewest, Largest, Tried, fewest, largest
from allocsim.questions.fit.lengths import lengths_of
from allocsim.questions.fit.model import Model, model_of
from allocsim.questions.fit.presets import CONFIGURATIONS, TORCHVISION
from allocsim.questions.fit.program import program_of
from allocsim.questions.fit.ran import Ran, run_program, run_task
from allocsim.questions.fit.served import SERVERS, Held, Served, held_of, serve
from allocsim.questions.fit.task import (
    ATTENTION,
    DTYPES,
    OPTIMIZERS,
    PARALLEL,
    STARTS,
    Task,
    usual_lengths,
)

__all__ = [
    "ATTENTION", "Answered", "CONFIGURATIONS", "DTYPES", "Fewest", "Fit", "Frontier", "Held",
    "Largest", "Model", "OPTIMIZERS", "PARALLEL", "Ran", "SERVERS", "SIZES", "STARTS", "Served",
    "TORCHVISION", "Task", "ToldFront", "Tried", "fewest", "fit", "fit_command", "frontier",
    "held_of", "largest", "lengths_of", "model_of", "program_of", "read_answers", "read_frontier",
    "run_by_law", "run_program", "run_task", "serve", "usual_lengths", "usual_values",
]  # fmt: skip
