"""Why did a request find no memory, and what would have let it through?

What only texts of servers and snapshots without entries need is imported when it is first used.
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
"""The module of each name that is imported when it is first used."""


__getattr__ = lazily(globals(), _LATER)
