"""The `scale` question: predict a program's memory at sizes that were not recorded."""

from allocsim.fitting.scale.growing import Growing
from allocsim.fitting.scale.law import ScalingLaw
from allocsim.fitting.scale.proof import LawCheck
from allocsim.fitting.scale.scale import LargestSize, Scaled, ScaleFrontier, Scaling, scaling_of
from allocsim.fitting.scale.written import recording_at

__all__ = [
    "Growing", "LargestSize", "LawCheck", "ScaleFrontier", "Scaled", "Scaling", "ScalingLaw",
    "recording_at", "scaling_of",
]  # fmt: skip
