"""Which setting helps: searches that prove each answer by a replay."""

from allocsim.tuning.capacity import Capacity, smallest_device
from allocsim.tuning.cost import Cost, Costs, read_costs
from allocsim.tuning.cure import Cure, Trial, find_cure, is_worth_a_search
from allocsim.tuning.explain import explain
from allocsim.tuning.explanation import DeviceExplanation, explain_recording
from allocsim.tuning.risk import Risk, risk_of
from allocsim.tuning.row import Row
from allocsim.tuning.setting import Setting
from allocsim.tuning.tricks import EXHAUSTIVE, Tricks
from allocsim.tuning.tune import tune
from allocsim.tuning.tuning import Tuning

__all__ = [
    "Capacity",
    "Cost",
    "Costs",
    "Cure",
    "DeviceExplanation",
    "EXHAUSTIVE",
    "Risk",
    "Row",
    "Setting",
    "Trial",
    "Tricks",
    "Tuning",
    "explain",
    "explain_recording",
    "find_cure",
    "is_worth_a_search",
    "read_costs",
    "risk_of",
    "smallest_device",
    "tune",
]
