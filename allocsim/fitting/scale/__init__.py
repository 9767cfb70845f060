"""The `scale` question: predict a program's memory at sizes that were not recorded."""

from allocsim.fitting.scale.growing import Growing
from allocsim.fitting.scale.law import Law
from allocsim.fitting.scale.proof import Check
from allocsim.fitting.scale.scale import Frontier, Largest, Scaled, Scaling, scaling_of
from allocsim.fitting.scale.written import recording_at

__all__ = [
    "Check",
    "Frontier",
    "Growing",
    "Largest",
    "Law",
    "Scaled",
    "Scaling",
    "recording_at",
    "scaling_of",
]
