"""Comparison of a replay with its recording: entries, addresses and final segments."""

from allocsim.fidelity.compare import FidelityCheck, Uncompared
from allocsim.fidelity.expected import Compared, Expected

__all__ = [
    "Compared",
    "Expected",
    "FidelityCheck",
    "Uncompared",
]
