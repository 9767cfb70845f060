"""Which setting helps: searches that prove each answer by a replay."""

from allocsim.tuning.cure import Cure, Trial, find_cure, is_worth_a_search

__all__ = ["Cure", "Trial", "find_cure", "is_worth_a_search"]
