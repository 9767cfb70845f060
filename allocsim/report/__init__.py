"""Results of commands as text, JSON, charts and HTML pages.  This package computes no results.

A module for each command formats its result: `document` as JSON, `text` in full and, for some
commands, `screen` in at most 22 lines.  Modules and names are imported on first use, so a command
loads only the code for its own result.
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily

if TYPE_CHECKING:
    from allocsim.report.answer import Answer, Tone
    from allocsim.report.fit import fit_document, fit_text, fits_document, fits_text
    from allocsim.report.fit_find import (
        fewest_document,
        fewest_text,
        frontier_document,
        frontier_text,
        largest_fit_document,
        largest_fit_text,
    )
    from allocsim.report.fit_plan import plan_document, plan_text, sharded_document, sharded_text
    from allocsim.report.fit_served import served_document, served_screen, served_text
    from allocsim.report.fit_started import started_document, started_text
    from allocsim.report.layout import others_text, shown_of, warned
    from allocsim.report.run_sections import Loan

__all__ = [
    "Answer", "Loan", "Tone", "colocate", "compare", "convert", "crosscheck", "explain",
    "explain_log", "explain_state", "explain_text", "fewest_document", "fewest_text",
    "fit_document", "fit_text", "fits_document", "fits_text", "frontier_document", "frontier_text",
    "gate", "host", "largest_fit_document", "largest_fit_text", "lint", "others_text",
    "plan_document", "plan_text", "ranks", "record", "replay", "risk", "scale", "served_document",
    "served_screen", "served_text", "sharded_document", "sharded_text", "shown_of",
    "started_document", "started_text", "stats", "step", "top", "tune", "warned", "watch",
]  # fmt: skip

_HOMES = {
    "answer": "Answer Tone",
    "fit": "fit_document fit_text fits_document fits_text",
    "fit_find": "fewest_document fewest_text frontier_document frontier_text largest_fit_document "
    "largest_fit_text",
    "fit_plan": "plan_document plan_text sharded_document sharded_text",
    "fit_served": "served_document served_screen served_text",
    "fit_started": "started_document started_text",
    "layout": "others_text shown_of warned",
    "run_sections": "Loan",
}
"""Names of each module, besides the modules of the commands."""

__getattr__ = lazily(globals(), _HOMES)
