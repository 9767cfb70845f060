"""Measures of a recording: fragmentation, lifetimes, packing, request sizes and periods.

A period is a part of the requests, such as a training step, that occurs several times in a row.
Modules are imported on first use.
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily

if TYPE_CHECKING:
    from allocsim.metrics.curve import (
        Extremes,
        Measures,
        Outline,
        extremes_of,
        levels_of,
        measures_of,
        outline_of,
        turning_rows,
    )
    from allocsim.metrics.lifetimes import (
        Lifetimes,
        Sizes,
        equal_periods,
        lifetimes_of,
        merged,
        period_starts,
        sizes_of,
        true_ranges,
    )
    from allocsim.metrics.owner import Code, code_at, code_names, code_of
    from allocsim.metrics.packing import pack

__all__ = [
    "Code", "Extremes", "Lifetimes", "Measures", "Outline", "Sizes", "code_at", "code_names",
    "code_of", "equal_periods", "extremes_of", "levels_of", "lifetimes_of", "measures_of", "merged",
    "outline_of", "pack", "period_starts", "true_ranges", "sizes_of", "turning_rows",
]  # fmt: skip

_HOMES = {
    "curve": "Extremes Measures Outline extremes_of levels_of measures_of outline_of turning_rows",
    "lifetimes": "Lifetimes Sizes equal_periods lifetimes_of merged period_starts sizes_of "
    "true_ranges",
    "owner": "Code code_at code_names code_of",
    "packing": "pack",
}

__getattr__ = lazily(globals(), _HOMES)
