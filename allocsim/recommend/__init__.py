"""Recommendation of an allocator setting: candidates, times of driver calls, and the choice."""

from allocsim.recommend.offer import (
    Bar,
    Cost,
    Costs,
    Offer,
    cost_of,
    driver_time,
    front,
    is_hopeless,
    read_costs,
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
from allocsim.recommend.settings_to_try import (
    Overflow,
    allows_expandable,
    applicable_settings,
    candidates,
    entries_left,
    is_fitted,
    overflow_of,
    proposals,
    rescues,
    usual_settings,
    was_refused,
)

__all__ = [
    "Bar", "Case", "Cost", "Costs", "MIN_SAVING_DIVISOR", "Offer", "Overflow", "Recommendation",
    "WhyNot", "allows_expandable", "applicable_settings", "candidates", "choose", "cost_of",
    "driver_time", "entries_left", "front", "is_fitted", "is_hopeless", "late_peak", "overflow_of",
    "proposals", "read_costs", "recommend", "rescues", "usual_settings", "was_refused",
]  # fmt: skip
