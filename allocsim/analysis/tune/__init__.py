"""Search for the allocator settings that reserve the least memory, measured by replays."""

from allocsim.analysis.tune.row import Row
from allocsim.analysis.tune.saved_trials import Tried, TriedSetting, read_tried
from allocsim.analysis.tune.tune import Tuning, tune
from allocsim.analysis.tune.worker import EXHAUSTIVE, Tricks
from allocsim.recommend import Costs, read_costs

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
