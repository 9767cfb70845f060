"""What people and programs read; shows numbers, computes none."""

from allocsim.report.document import replay_document
from allocsim.report.text import replay_text

__all__ = ["replay_document", "replay_text"]
