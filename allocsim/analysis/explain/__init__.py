"""Explanation of out-of-memory errors: cause, blocks to free, and remedies proved by replays.

Names that are needed only for snapshots without entries are imported when they are first used.
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily
from allocsim.analysis.explain.cause import Figures, arithmetic_of
from allocsim.analysis.explain.explanation import (
    Cure,
    DeviceExplanation,
    Remedy,
    cures_of,
    explain,
    explain_device,
    explain_prepared,
    explain_recording,
)
from allocsim.analysis.explain.shortage import Blocker, OomWatch, Shortage, shortages_of
from allocsim.analysis.explain.state_at_error import KINDS, Blockers
from allocsim.analysis.explain.verdict import Verdict

if TYPE_CHECKING:
    from allocsim.analysis.explain.of_state import (
        HostExplanation,
        Refusal,
        StateExplanation,
        explain_host,
        explain_state,
    )

__all__ = [
    "Blocker", "Blockers", "Cure", "DeviceExplanation", "Figures", "HostExplanation", "KINDS",
    "OomWatch", "Refusal", "Remedy", "Shortage", "StateExplanation", "Verdict", "arithmetic_of",
    "cures_of", "explain", "explain_device", "explain_host", "explain_prepared",
    "explain_recording", "explain_state", "shortages_of",
]  # fmt: skip

__getattr__ = lazily(
    globals(), {"of_state": "HostExplanation Refusal StateExplanation explain_host explain_state"}
)
