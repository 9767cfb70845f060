"""The replay engine: the one place where a trace meets an allocator."""

from allocsim.engine.observers import GiveUpError, Observer, Progress
from allocsim.engine.replay import replay
from allocsim.engine.result import (
    DeviceRun,
    Fidelity,
    Mismatch,
    PeakState,
    Run,
    SimulatedOom,
    Timeline,
)
from allocsim.engine.walk import Walk

__all__ = [
    "replay",
    "Walk",
    "Run",
    "DeviceRun",
    "Fidelity",
    "GiveUpError",
    "Mismatch",
    "Observer",
    "PeakState",
    "Progress",
    "SimulatedOom",
    "Timeline",
]
