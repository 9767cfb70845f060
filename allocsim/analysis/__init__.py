"""Numbers from runs: what a replay's figures prove, and nothing beyond."""

from allocsim.analysis.cause import MESSAGE_CAUSES, Figures, cause_of
from allocsim.analysis.shortage import CAUSES, OomWatch, Shortage, shortages_of
from allocsim.analysis.verdict import Verdict, judge_text

__all__ = [
    "Figures",
    "MESSAGE_CAUSES",
    "Verdict",
    "cause_of",
    "judge_text",
    "CAUSES",
    "OomWatch",
    "Shortage",
    "shortages_of",
]
