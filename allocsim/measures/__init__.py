"""Figures for any question: lifetimes, packing, fragmentation, lines of code, trade-offs."""

from allocsim.measures.equivalence import effect_of, effects_on
from allocsim.measures.extremes import Extremes, extremes_of, levels_of
from allocsim.measures.lifetimes import Lifetimes, lifetimes_of
from allocsim.measures.measures import Measures, measures_of
from allocsim.measures.owner import Code, code_at, code_of
from allocsim.measures.packing import pack
from allocsim.measures.pareto import Bar, front, is_hopeless
from allocsim.measures.sizes import Sizes, merged, sizes_of
from allocsim.measures.usual_settings import usual_settings

__all__ = [
    "Bar", "Code", "Extremes", "Lifetimes", "Measures", "Sizes", "code_at", "code_of", "effect_of",
    "effects_on", "extremes_of", "front", "is_hopeless", "levels_of", "lifetimes_of", "measures_of",
    "merged", "pack", "sizes_of", "usual_settings",
]  # fmt: skip
