"""Several recorded programs on one card: phases, sleep, peaks and the smallest card."""

from allocsim.analysis.colocate.card import CardRun, Failure, PhaseRun
from allocsim.analysis.colocate.colocate import Colocation, Way, colocate
from allocsim.analysis.colocate.programs import Phase, Program, Sleep

__all__ = [
    "CardRun", "Colocation", "Failure", "Phase", "PhaseRun", "Program", "Sleep", "Way", "colocate",
]  # fmt: skip
