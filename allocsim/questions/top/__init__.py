"""Whose memory is it: by line, stack, module, category, stream or pool."""

from allocsim.questions.top.course import Course
from allocsim.questions.top.flame import FlameBox, FlameGraph, flame_of
from allocsim.questions.top.purposes import purposes_of
from allocsim.questions.top.rules import CATEGORIES, RULES, UNKNOWN, Rule
from allocsim.questions.top.top import (
    BY,
    Holding,
    Moment,
    Row,
    Told,
    Top,
    told_of_run,
    top,
    top_of_run,
)

__all__ = [
    "BY", "CATEGORIES", "Course", "FlameBox", "FlameGraph", "Holding", "Moment", "RULES", "Row",
    "Rule", "Told", "Top", "UNKNOWN", "flame_of", "purposes_of", "told_of_run", "top", "top_of_run",
]  # fmt: skip
