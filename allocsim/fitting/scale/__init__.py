"""Prediction of a program's memory at sizes, such as batch sizes, that were not recorded."""

from allocsim.fitting.scale.growing import Growing, LawCheck
from allocsim.fitting.scale.law import ScalingLaw
from allocsim.fitting.scale.scale import (
    LargestSize,
    Scaled,
    ScaleFrontier,
    Scaling,
    recording_at,
    scaling_of,
)

__all__ = [
    "Growing", "LargestSize", "LawCheck", "ScaleFrontier", "Scaled", "Scaling", "ScalingLaw",
    "recording_at", "scaling_of",
]  # fmt: skip
