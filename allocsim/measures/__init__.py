"""Measurements that several questions share, and the rule by which every command recommends."""

from allocsim.measures.candidates import UNTRIED, candidates
from allocsim.measures.cost import Cost, Costs, cost_of, driver_time, read_costs
from allocsim.measures.driver_times import DriverTimes
from allocsim.measures.equivalence import effect_of, effects_on
from allocsim.measures.extremes import Extremes, extremes_of, levels_of, turning_rows
from allocsim.measures.hopeless import overflows, was_refused
from allocsim.measures.lifetimes import Lifetimes, lifetimes_of
from allocsim.measures.measures import Measures, measures_of
from allocsim.measures.offer import Offer
from allocsim.measures.outline import Outline, outline_of
from allocsim.measures.owner import Code, code_at, code_names, code_of
from allocsim.measures.packing import pack
from allocsim.measures.pareto import Bar, front, is_hopeless
from allocsim.measures.proposals import (
    allows_expandable,
    is_fitted,
    proposals,
    read_alike,
    rescues,
    usual_settings,
)
from allocsim.measures.recommendation import (
    WORTH,
    Case,
    Recommendation,
    WhyNot,
    choose,
    late_peak,
    recommend,
)
from allocsim.measures.rounds import equally_long, rounds_of, runs_of
from allocsim.measures.sizes import Sizes, merged, rounded_by, sizes_of

__all__ = [
    "Bar", "Case", "Code", "Cost", "Costs", "DriverTimes", "Extremes", "Lifetimes", "Measures",
    "Offer", "Outline", "Recommendation", "Sizes", "UNTRIED", "WORTH", "WhyNot",
    "allows_expandable", "candidates", "choose", "code_at", "code_names", "code_of", "cost_of",
    "driver_time", "effect_of", "effects_on", "equally_long", "extremes_of", "front", "is_fitted",
    "is_hopeless", "late_peak", "levels_of", "lifetimes_of", "measures_of", "merged", "outline_of",
    "overflows", "pack", "proposals", "read_alike", "read_costs", "recommend", "rescues",
    "rounded_by", "rounds_of", "runs_of", "sizes_of", "turning_rows", "usual_settings",
    "was_refused",
]  # fmt: skip
