"""Results as text, JSON, figures and pages; numbers are shown here, not computed."""

from allocsim.report.answer import Answer, Tone
from allocsim.report.crosscheck import crosscheck_document, crosscheck_text
from allocsim.report.explain import (
    explanation_document,
    explanation_text,
    verdicts_document,
    verdicts_text,
)
from allocsim.report.layout import shown_of, warned
from allocsim.report.record import record_document, record_text
from allocsim.report.replay import replay_document, replay_text
from allocsim.report.risk import risk_document, risk_text
from allocsim.report.screens import (
    explanation_screen,
    replay_screen,
    risk_screen,
    tuning_screen,
    verdicts_screen,
)
from allocsim.report.step import segments_text, step_document, step_text
from allocsim.report.top import collapsed_text, speedscope_document, top_document, top_text
from allocsim.report.tune import tuning_document, tuning_text

__all__ = [
    "Answer", "Tone", "collapsed_text", "crosscheck_document", "crosscheck_text",
    "explanation_document", "explanation_screen", "explanation_text", "record_document",
    "record_text", "replay_document", "replay_screen", "replay_text", "risk_document",
    "risk_screen", "risk_text", "segments_text", "shown_of", "speedscope_document",
    "step_document", "step_text", "top_document", "top_text", "tuning_document",
    "tuning_screen", "tuning_text", "verdicts_document", "verdicts_screen", "verdicts_text",
    "warned",
]  # fmt: skip
