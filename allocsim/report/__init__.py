"""Results of commands as text, JSON, charts and HTML pages.  This package computes no results.

A module for each command formats its result: `document` as JSON, `text` in full and, for some
commands, `screen` as a short answer.  Modules and names are imported on first use, so a command
loads only the code for its own result.
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily

if TYPE_CHECKING:
    from allocsim.report.answer import Answer, Tone
    from allocsim.report.layout import others_text, shown_of, warned
    from allocsim.report.spill import Loan

__all__ = [
    "Answer", "Loan", "Tone", "colocate", "compare", "convert", "crosscheck", "explain",
    "explain_state", "explain_message", "fit", "fit_find", "fit_plan", "fit_served", "fit_started",
    "gate", "host", "lint", "others_text", "ranks", "record", "replay", "risk", "scale", "shown_of",
    "stats", "step", "top", "tune", "warned", "watch",
]  # fmt: skip

_HOMES = {"answer": "Answer Tone", "layout": "others_text shown_of warned", "spill": "Loan"}
"""Dictionary from each module that several commands share to the names exported from it."""

__getattr__ = lazily(globals(), _HOMES)
