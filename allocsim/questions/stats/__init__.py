"""Summary of a recording's contents."""

from allocsim.questions.stats.stats import DeviceStats, Stats, stats

__all__ = ["DeviceStats", "Stats", "stats"]
