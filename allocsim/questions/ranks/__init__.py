"""Every rank of a job: which of them decides, and how far they lie apart."""

from allocsim.questions.ranks.found import Found, found_in
from allocsim.questions.ranks.one import RankRun, run_of
from allocsim.questions.ranks.ranks import Ranks, Refused, ranks

__all__ = ["Found", "RankRun", "Ranks", "Refused", "found_in", "ranks", "run_of"]
