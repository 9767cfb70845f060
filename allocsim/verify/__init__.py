"""Cross-check: compare the model with real PyTorch on the same op scripts.

An op script is a list of calls of the allocator (script.py).
"""

from allocsim.verify.crosscheck import KINDS, CrossCheck, Report, Source, WheelSource, crosscheck
from allocsim.verify.installed import InstalledSource
from allocsim.verify.real import RealAllocator
from allocsim.verify.script import RealAnswer, Script

__all__ = [
    "CrossCheck", "InstalledSource", "KINDS", "RealAllocator", "Report", "RealAnswer", "Script",
    "Source", "WheelSource", "crosscheck",
]  # fmt: skip
