"""Differences between the memory of two runs, and the owners that cause the differences."""

from allocsim.analysis.compare.compare import Comparison, compare, compare_settings
from allocsim.analysis.compare.matched import Change
from allocsim.analysis.compare.side import Parts, Side

__all__ = ["Change", "Comparison", "Parts", "Side", "compare", "compare_settings"]
