"""Search for the settings that reserve the least memory; every figure comes from a replay."""

from allocsim.measures import Costs, read_costs
from allocsim.questions.tune.row import Row
from allocsim.questions.tune.tried import Tried, TriedSetting, read_tried
from allocsim.questions.tune.tune import Tuning, tune
from allocsim.questions.tune.worker import EXHAUSTIVE, Tricks

__all__ = [
    "Costs",
    "EXHAUSTIVE",
    "Row",
    "Tricks",
    "Tried",
    "TriedSetting",
    "Tuning",
    "read_costs",
    "read_tried",
    "tune",
]
