"""Choice of one allocator setting: candidates, driver time, Pareto front and the decision."""

from allocsim.recommend.candidates import UNTRIED, candidates
from allocsim.recommend.cost import Cost, Costs, cost_of, driver_time, read_costs
from allocsim.recommend.driver_times import DriverTimes
from allocsim.recommend.offer import Offer
from allocsim.recommend.pareto import Bar, front, is_hopeless
from allocsim.recommend.proposals import (
    allows_expandable,
    is_fitted,
    overflows,
    proposals,
    read_alike,
    rescues,
    usual_settings,
    was_refused,
)
from allocsim.recommend.rule import (
    MIN_SAVING_DIVISOR,
    Case,
    Recommendation,
    WhyNot,
    choose,
    late_peak,
    recommend,
)

__all__ = [
    "Bar",
    "Case",
    "Cost",
    "Costs",
    "DriverTimes",
    "Offer",
    "Recommendation",
    "UNTRIED",
    "MIN_SAVING_DIVISOR",
    "WhyNot",
    "allows_expandable",
    "candidates",
    "choose",
    "cost_of",
    "driver_time",
    "front",
    "is_fitted",
    "is_hopeless",
    "late_peak",
    "overflows",
    "proposals",
    "read_alike",
    "read_costs",
    "recommend",
    "rescues",
    "usual_settings",
    "was_refused",
]
