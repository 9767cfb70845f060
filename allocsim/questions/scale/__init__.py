"""The `scale` question: predict a program's memory at sizes that were not recorded."""

from allocsim.questions.scale.growing import Growing
from allocsim.questions.scale.law import Law
from allocsim.questions.scale.proof import Check
from allocsim.questions.scale.scale import Frontier, Largest, Scaled, Scaling, scaling_of
from allocsim.questions.scale.written import recording_at

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
