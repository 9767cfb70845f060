"""Figures that any question may need: lifetimes, packing, fragmentation, whose code, trade-offs."""

from allocsim.measures.extremes import Extremes, extremes_of, levels_of
from allocsim.measures.lifetimes import Lifetimes, lifetimes_of
from allocsim.measures.measures import Measures, measures_of
from allocsim.measures.owner import Code, code_at, code_of
from allocsim.measures.packing import pack
from allocsim.measures.pareto import Bar, front, is_hopeless
from allocsim.measures.usual_settings import usual_settings

__all__ = [
    "Bar",
    "Code",
    "Extremes",
    "Lifetimes",
    "Measures",
    "code_at",
    "code_of",
    "extremes_of",
    "front",
    "is_hopeless",
    "levels_of",
    "lifetimes_of",
    "measures_of",
    "pack",
    "usual_settings",
]
