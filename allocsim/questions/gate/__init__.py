"""Check a recording against memory limits or a baseline."""

from allocsim.questions.gate.baseline import Baseline, read_baseline, write_baseline
from allocsim.questions.gate.body import PLACES, Held
from allocsim.questions.gate.gate import Budget, Check, Gate, gate
from allocsim.questions.gate.growth import Growth
from allocsim.questions.gate.measured import Measured, measured

__all__ = [
    "Baseline",
    "Budget",
    "Check",
    "Gate",
    "Growth",
    "Held",
    "Measured",
    "PLACES",
    "gate",
    "measured",
    "read_baseline",
    "write_baseline",
]
