"""Can a recording, or an option string, be trusted as it is?"""

from allocsim.questions.lint.finding import CHECKS, Check, Finding
from allocsim.questions.lint.lint import Lint, lint, lint_conf

__all__ = ["CHECKS", "Check", "Finding", "Lint", "lint", "lint_conf"]
