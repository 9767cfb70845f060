"""Comparison of all ranks of a distributed job: the largest rank, and the imbalance of memory."""

from allocsim.analysis.ranks.rank_run import Found, RankRun, found_in, run_of
from allocsim.analysis.ranks.ranks import Ranks, Refused, ranks

__all__ = ["Found", "RankRun", "Ranks", "Refused", "found_in", "ranks", "run_of"]
