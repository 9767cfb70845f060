"""Numbers from runs: what a replay's figures prove, and nothing beyond."""

from allocsim.analysis.cause import MESSAGE_CAUSES, Figures, cause_of
from allocsim.analysis.decision import Decision, Request
from allocsim.analysis.shortage import CAUSES, OomWatch, Shortage, shortages_of
from allocsim.analysis.stepping import step, walk_on
from allocsim.analysis.verdict import Verdict, judge_text

__all__ = [
    "Figures",
    "MESSAGE_CAUSES",
    "Verdict",
    "cause_of",
    "judge_text",
    "Decision",
    "Request",
    "step",
    "walk_on",
    "CAUSES",
    "OomWatch",
    "Shortage",
    "shortages_of",
]
