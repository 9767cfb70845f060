"""Comparison of all ranks of a distributed job: the largest rank, and the imbalance of memory."""

from allocsim.analysis.ranks.found import Found, found_in
from allocsim.analysis.ranks.one import RankRun, run_of
from allocsim.analysis.ranks.ranks import Ranks, Refused, ranks

__all__ = ["Found", "RankRun", "Ranks", "Refused", "found_in", "ranks", "run_of"]
