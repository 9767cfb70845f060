"""Checks of recordings and of PYTORCH_CUDA_ALLOC_CONF values before a replay."""

from allocsim.analysis.lint.checks import CHECKS, Finding, LintRule
from allocsim.analysis.lint.lint import Lint, lint, lint_conf

__all__ = ["CHECKS", "LintRule", "Finding", "Lint", "lint", "lint_conf"]
