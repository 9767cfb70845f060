"""Explanation of out-of-memory errors: the cause, the blocks in the way, and proved remedies.

Names that are needed only for snapshots without entries are imported when they are first used.
"""

from typing import TYPE_CHECKING

from allocsim.lazily import lazily
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
from allocsim.questions.explain.shortage import Blocker, OomWatch, Shortage, shortages_of
from allocsim.questions.explain.verdict import Verdict

if TYPE_CHECKING:
    from allocsim.questions.explain.of_state import Refusal, StateExplanation, explain_state

__all__ = [
    "Blocker",
    "Blockers",
    "Cure",
    "DeviceExplanation",
    "Figures",
    "KINDS",
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
    "shortages_of",
]

_LATER = {
    "Refusal": "of_state",
    "StateExplanation": "of_state",
    "explain_state": "of_state",
}
"""Module of each name that is imported when it is first used."""


__getattr__ = lazily(globals(), _LATER)
