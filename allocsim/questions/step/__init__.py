"""How does the allocator decide?  One request at a time, every rule named."""

from allocsim.questions.step.decision import Candidate, Decision, Moved, Request
from allocsim.questions.step.stepping import step, walk_on

__all__ = ["Candidate", "Decision", "Moved", "Request", "step", "walk_on"]
