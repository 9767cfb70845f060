"""Results of commands as text, JSON, charts and HTML pages.  This package computes no results.

Names are imported on first use, so a command loads only the code for its own result.
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily

if TYPE_CHECKING:
    from allocsim.report.answer import Answer, Tone
    from allocsim.report.colocate import colocate_document, colocate_screen, colocate_text
    from allocsim.report.compare import compare_document, compare_text
    from allocsim.report.convert import convert_document, convert_text
    from allocsim.report.crosscheck import crosscheck_document, crosscheck_text
    from allocsim.report.explain import (
        explanation_document,
        explanation_text,
        verdicts_document,
        verdicts_text,
    )
    from allocsim.report.explain_log import log_document, log_screen, log_text
    from allocsim.report.explain_screen import explanation_screen, verdicts_screen
    from allocsim.report.explain_state import state_document, state_screen, state_text
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
    from allocsim.report.gate import gate_document, gate_text
    from allocsim.report.host import host_document, host_text
    from allocsim.report.layout import others_text, shown_of, warned
    from allocsim.report.lint import lint_document, lint_text
    from allocsim.report.ranks import ranks_document, ranks_text
    from allocsim.report.record import record_document, record_text
    from allocsim.report.replay import replay_document, replay_screen, replay_text
    from allocsim.report.risk import risk_document, risk_screen, risk_text
    from allocsim.report.scale import (
        largest_text,
        scale_document,
        scale_frontier_text,
        scale_text,
    )
    from allocsim.report.spill import Loan
    from allocsim.report.stats import stats_document, stats_text
    from allocsim.report.step import segments_text, step_document, step_text
    from allocsim.report.top import collapsed_text, speedscope_document, top_document, top_text
    from allocsim.report.tune import tuning_document, tuning_screen, tuning_text
    from allocsim.report.watch import watch_document, watch_text

__all__ = [
    "Answer", "Loan", "Tone", "collapsed_text", "colocate_document", "colocate_screen",
    "colocate_text", "compare_document", "compare_text",
    "convert_document", "convert_text", "crosscheck_document", "crosscheck_text",
    "explanation_document", "explanation_screen", "explanation_text", "fewest_document",
    "fewest_text", "fit_document", "fit_text", "fits_document", "fits_text", "frontier_document",
    "frontier_text", "largest_fit_document", "largest_fit_text", "largest_text", "others_text",
    "gate_document", "gate_text", "host_document", "host_text", "lint_document", "lint_text",
    "log_document", "log_screen", "log_text", "plan_document", "plan_text", "ranks_document",
    "ranks_text", "record_document", "record_text", "replay_document", "replay_screen",
    "replay_text", "risk_document", "risk_screen", "risk_text", "scale_document",
    "scale_frontier_text", "scale_text",
    "segments_text", "served_document", "served_screen", "served_text", "sharded_document",
    "sharded_text", "shown_of", "speedscope_document", "started_document", "started_text",
    "state_document", "state_screen", "state_text", "stats_document", "stats_text", "step_document",
    "step_text", "top_document", "top_text", "tuning_document", "tuning_screen", "tuning_text",
    "verdicts_document", "verdicts_screen", "verdicts_text", "warned", "watch_document",
    "watch_text",
]  # fmt: skip


_HOMES = {
    "Answer": "answer",
    "Loan": "spill",
    "Tone": "answer",
    "collapsed_text": "top",
    "colocate_document": "colocate",
    "colocate_screen": "colocate",
    "colocate_text": "colocate",
    "compare_document": "compare",
    "compare_text": "compare",
    "convert_document": "convert",
    "convert_text": "convert",
    "crosscheck_document": "crosscheck",
    "crosscheck_text": "crosscheck",
    "explanation_document": "explain",
    "explanation_screen": "explain_screen",
    "explanation_text": "explain",
    "fewest_document": "fit_find",
    "fewest_text": "fit_find",
    "fit_document": "fit",
    "fit_text": "fit",
    "fits_document": "fit",
    "fits_text": "fit",
    "frontier_document": "fit_find",
    "frontier_text": "fit_find",
    "largest_fit_document": "fit_find",
    "largest_fit_text": "fit_find",
    "largest_text": "scale",
    "others_text": "layout",
    "plan_document": "fit_plan",
    "plan_text": "fit_plan",
    "gate_document": "gate",
    "host_document": "host",
    "host_text": "host",
    "lint_document": "lint",
    "lint_text": "lint",
    "gate_text": "gate",
    "watch_document": "watch",
    "watch_text": "watch",
    "ranks_document": "ranks",
    "log_document": "explain_log",
    "log_screen": "explain_log",
    "log_text": "explain_log",
    "ranks_text": "ranks",
    "record_document": "record",
    "record_text": "record",
    "replay_document": "replay",
    "replay_screen": "replay",
    "replay_text": "replay",
    "risk_document": "risk",
    "risk_screen": "risk",
    "risk_text": "risk",
    "scale_document": "scale",
    "scale_frontier_text": "scale",
    "scale_text": "scale",
    "segments_text": "step",
    "served_document": "fit_served",
    "served_screen": "fit_served",
    "served_text": "fit_served",
    "sharded_document": "fit_plan",
    "sharded_text": "fit_plan",
    "shown_of": "layout",
    "speedscope_document": "top",
    "started_document": "fit_started",
    "started_text": "fit_started",
    "state_document": "explain_state",
    "state_screen": "explain_state",
    "state_text": "explain_state",
    "stats_document": "stats",
    "stats_text": "stats",
    "step_document": "step",
    "step_text": "step",
    "top_document": "top",
    "top_text": "top",
    "tuning_document": "tune",
    "tuning_screen": "tune",
    "tuning_text": "tune",
    "verdicts_document": "explain",
    "verdicts_screen": "explain_screen",
    "verdicts_text": "explain",
    "warned": "layout",
}
"""Module of each name."""


__getattr__ = lazily(globals(), _HOMES)
