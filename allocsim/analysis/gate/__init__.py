"""Check a recording against memory limits or a baseline."""

from allocsim.analysis.gate.body import PLACES, HeldBefore
from allocsim.analysis.gate.gate import (
    Baseline,
    Budget,
    Gate,
    LimitCheck,
    LineGrowth,
    Measured,
    gate,
    measured,
    read_baseline,
    write_baseline,
)

__all__ = [
    "Baseline", "Budget", "LimitCheck", "Gate", "LineGrowth", "HeldBefore", "Measured", "PLACES",
    "gate", "measured", "read_baseline", "write_baseline",
]  # fmt: skip
