"""Whose memory is it: by line, stack, module, category, stream or pool."""

from allocsim.questions.top.flame import FlameBox, FlameGraph, flame_of
from allocsim.questions.top.rules import CATEGORIES, RULES, UNKNOWN, Rule
from allocsim.questions.top.top import BY, Holding, Moment, Row, Top, top, top_of_run

__all__ = [
    "BY", "CATEGORIES", "FlameBox", "FlameGraph", "Holding", "Moment", "RULES", "Row", "Rule",
    "Top", "UNKNOWN", "flame_of", "top", "top_of_run",
]  # fmt: skip
