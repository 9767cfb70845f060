"""Memory of a device by owner: line, stack, module, category, stream or pool."""

from allocsim.analysis.top.flame import FlameBox, FlameGraph, flame_of
from allocsim.analysis.top.of_runs import top_of_replay, top_of_spill, tops_of_fit
from allocsim.analysis.top.top import (
    Course,
    Holding,
    StackAnswers,
    Top,
    TopRow,
    answers_of_run,
    top,
    top_host,
    top_of_run,
)
from allocsim.ownership import BY, CATEGORIES, RULES, UNKNOWN, CategoryRule, Moment

__all__ = [
    "BY", "CATEGORIES", "CategoryRule", "Course", "FlameBox", "FlameGraph", "Holding", "Moment",
    "RULES", "TopRow", "StackAnswers", "Top", "UNKNOWN", "flame_of", "answers_of_run", "top",
    "top_host", "top_of_replay", "top_of_run", "top_of_spill", "tops_of_fit",
]  # fmt: skip
