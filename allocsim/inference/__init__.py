"""Inference of the calls of a program that its recording does not show."""

from allocsim.inference.calls_without_entry import (
    OtherPlan,
    Probe,
    Quiet,
    entries_suffice,
    has_unseen_calls,
    leaves_open,
    may_hide_calls,
    moments_of,
    needs_quiet_moments,
    open_plans,
    quiet_moments,
)
from allocsim.inference.evidence import has_unknown_sizes, learn_start
from allocsim.inference.search import plan_of

__all__ = [
    "OtherPlan", "Probe", "Quiet", "entries_suffice", "has_unknown_sizes", "has_unseen_calls",
    "learn_start", "leaves_open", "may_hide_calls", "moments_of", "needs_quiet_moments",
    "open_plans", "plan_of", "quiet_moments",
]  # fmt: skip
