"""Differences between two runs, and the owners that cause them."""

from allocsim.questions.compare.compare import Comparison, compare, compare_settings
from allocsim.questions.compare.matched import Change
from allocsim.questions.compare.side import Parts, Side

__all__ = ["Change", "Comparison", "Parts", "Side", "compare", "compare_settings"]
