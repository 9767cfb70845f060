"""Owners of memory by line, stack, module, category, stream or pool."""

from allocsim.analysis.top.course import Course
from allocsim.analysis.top.flame import FlameBox, FlameGraph, flame_of
from allocsim.analysis.top.top import (
    Holding,
    Row,
    StackAnswers,
    Top,
    answers_of_run,
    top,
    top_of_run,
)
from allocsim.ownership import BY, CATEGORIES, RULES, UNKNOWN, CategoryRule, Moment

__all__ = [
    "BY", "CATEGORIES", "CategoryRule", "Course", "FlameBox", "FlameGraph", "Holding", "Moment",
    "RULES", "Row", "StackAnswers", "Top", "UNKNOWN", "flame_of", "answers_of_run", "top",
    "top_of_run",
]  # fmt: skip
