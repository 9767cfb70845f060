"""Explanation of the allocator's decisions, one request at a time."""

from allocsim.analysis.step.decision import Candidate, Decision, Moved, Request
from allocsim.analysis.step.stepping import step, walk_on

__all__ = ["Candidate", "Decision", "Moved", "Request", "step", "walk_on"]
