"""Why did a request find no memory, and what would have let it through?"""

from allocsim.questions.explain.blockers import Blockers
from allocsim.questions.explain.cause import Figures, arithmetic_of
from allocsim.questions.explain.cure import Cure, cures_of
from allocsim.questions.explain.explanation import (
    DeviceExplanation,
    Remedy,
    explain,
    explain_device,
    explain_prepared,
    explain_recording,
)
from allocsim.questions.explain.kinds import KINDS
from allocsim.questions.explain.log import LogFigure, LogFigures, figures_in
from allocsim.questions.explain.of_state import Refusal, StateExplanation, explain_state
from allocsim.questions.explain.shortage import Blocker, OomWatch, Shortage, shortages_of
from allocsim.questions.explain.verdict import Verdict

__all__ = [
    "Blocker",
    "Blockers",
    "Cure",
    "DeviceExplanation",
    "Figures",
    "KINDS",
    "LogFigure",
    "LogFigures",
    "OomWatch",
    "Refusal",
    "Remedy",
    "Shortage",
    "StateExplanation",
    "Verdict",
    "arithmetic_of",
    "cures_of",
    "explain",
    "explain_device",
    "explain_prepared",
    "explain_recording",
    "explain_state",
    "figures_in",
    "shortages_of",
]
