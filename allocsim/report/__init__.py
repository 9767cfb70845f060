"""What people and programs read; shows numbers, computes none."""

from allocsim.report.document import replay_document
from allocsim.report.explanation import explanation_document, explanation_text
from allocsim.report.risk import risk_document, risk_text
from allocsim.report.text import replay_text
from allocsim.report.verdict import verdicts_document, verdicts_text

__all__ = [
    "explanation_document",
    "explanation_text",
    "replay_document",
    "replay_text",
    "risk_document",
    "risk_text",
    "verdicts_document",
    "verdicts_text",
]
