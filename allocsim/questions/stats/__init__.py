"""What is in a file?"""

from allocsim.questions.stats.stats import DeviceStats, Stats, stats

__all__ = ["DeviceStats", "Stats", "stats"]
