"""Owners of memory by line, stack, module, category, stream or pool."""

from allocsim.owners import BY, CATEGORIES, RULES, UNKNOWN, Moment, Rule
from allocsim.questions.top.course import Course
from allocsim.questions.top.flame import FlameBox, FlameGraph, flame_of
from allocsim.questions.top.top import (
    Holding,
    Row,
    StackAnswers,
    Top,
    answers_of_run,
    top,
    top_of_run,
)

__all__ = [
    "BY", "CATEGORIES", "Course", "FlameBox", "FlameGraph", "Holding", "Moment", "RULES", "Row",
    "Rule", "StackAnswers", "Top", "UNKNOWN", "flame_of", "answers_of_run", "top", "top_of_run",
]  # fmt: skip
