"""Detection of new recordings in a folder."""

from allocsim.analysis.watch.arrivals import Arrival, Arrivals, Unreadable

__all__ = ["Arrival", "Arrivals", "Unreadable"]
