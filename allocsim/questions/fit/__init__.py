"""Will it fit: a model at work, run by real PyTorch on a GPU that is not there."""

from allocsim.questions.fit.answered import Answered, read_answers
from allocsim.questions.fit.fit import Fit, fit, fit_command
from allocsim.questions.fit.largest import SIZES, Fewest, Largest, Tried, fewest, largest
from allocsim.questions.fit.lengths import lengths_of
from allocsim.questions.fit.model import Model, model_of
from allocsim.questions.fit.presets import CONFIGURATIONS, TORCHVISION
from allocsim.questions.fit.program import program_of
from allocsim.questions.fit.ran import Ran, run_program, run_task
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
    "ATTENTION", "Answered", "CONFIGURATIONS", "DTYPES", "Fewest", "Fit", "Largest", "Model",
    "OPTIMIZERS", "PARALLEL", "Ran", "SIZES", "STARTS", "TORCHVISION", "Task", "Tried", "fewest",
    "fit", "fit_command", "largest", "lengths_of", "model_of", "program_of", "read_answers",
    "run_program", "run_task", "usual_lengths",
]  # fmt: skip
