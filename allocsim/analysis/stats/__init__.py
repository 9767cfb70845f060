"""Summary of a recording's contents."""

from allocsim.analysis.stats.stats import DeviceStats, Stats, stats

__all__ = ["DeviceStats", "Stats", "stats"]
