"""Search for the allocator settings that reserve the least memory, measured by replays."""

from allocsim.analysis.tune.results import SavedTrials, SettingRow, TriedSetting, read_tried
from allocsim.analysis.tune.tune import Tuning, tune
from allocsim.analysis.tune.worker import EXHAUSTIVE, Tricks
from allocsim.recommend import Costs, read_costs

__all__ = [
    "Costs", "EXHAUSTIVE", "SettingRow", "Tricks", "SavedTrials", "TriedSetting", "Tuning",
    "read_costs", "read_tried", "tune",
]  # fmt: skip
