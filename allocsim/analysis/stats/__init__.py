"""Summary of a recording's contents."""

from allocsim.analysis.stats.stats import DeviceSummary, Stats, stats

__all__ = ["DeviceSummary", "Stats", "stats"]
