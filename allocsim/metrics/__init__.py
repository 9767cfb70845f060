"""Measures of a recording: fragmentation, lifetimes, packing, request sizes and periods.

A period is a part of the requests, such as a training step, that occurs several times in a row.
"""

from allocsim.metrics.downsample import Extremes, extremes_of, levels_of, turning_rows
from allocsim.metrics.fragmentation import Measures, measures_of
from allocsim.metrics.lifetimes import Lifetimes, lifetimes_of
from allocsim.metrics.outline import Outline, outline_of
from allocsim.metrics.owner import Code, code_at, code_names, code_of
from allocsim.metrics.packing import pack
from allocsim.metrics.periods import equally_long, rounds_of, runs_of
from allocsim.metrics.sizes import RequestedSizes, Sizes, asked_of, merged, rounded_by, sizes_of

__all__ = [
    "Code",
    "Extremes",
    "Lifetimes",
    "Measures",
    "Outline",
    "RequestedSizes",
    "Sizes",
    "asked_of",
    "code_at",
    "code_names",
    "code_of",
    "equally_long",
    "extremes_of",
    "levels_of",
    "lifetimes_of",
    "measures_of",
    "merged",
    "outline_of",
    "pack",
    "rounded_by",
    "rounds_of",
    "runs_of",
    "sizes_of",
    "turning_rows",
]
