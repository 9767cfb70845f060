"""Comparison of the model with real PyTorch on the same op scripts."""

from allocsim.questions.crosscheck.crosscheck import Check, Report, Source, WheelSource, crosscheck
from allocsim.questions.crosscheck.golden import check_case, load_case
from allocsim.questions.crosscheck.installed import InstalledSource
from allocsim.questions.crosscheck.real import RealAllocator
from allocsim.questions.crosscheck.script import RealAnswer, Script
from allocsim.questions.crosscheck.tally import KINDS

__all__ = [
    "Check",
    "InstalledSource",
    "KINDS",
    "RealAllocator",
    "Report",
    "RealAnswer",
    "Script",
    "Source",
    "WheelSource",
    "check_case",
    "crosscheck",
    "load_case",
]
