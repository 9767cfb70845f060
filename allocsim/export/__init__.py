"""Replays written as recordings, with the history that PyTorch would have written."""

from allocsim.export.history_columns import History, HistoryWatch, columns_of
from allocsim.export.simulated import Simulated, simulate, simulate_prepared

__all__ = [
    "History",
    "HistoryWatch",
    "Simulated",
    "columns_of",
    "simulate",
    "simulate_prepared",
]
