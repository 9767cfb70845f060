"""The GPU that is not there: published PyTorch libraries over a device that keeps books.

Nothing here imports torch.  `RealAllocator` runs op scripts through the native allocator of a
release; the stub libraries in `stub/` stand where CUDA's would.
"""

from __future__ import annotations

from allocsim.phantom.errors import PhantomError, RefusedError, ScriptError, UnavailableError
from allocsim.phantom.real import RealAllocator
from allocsim.phantom.script import Results, Script

__all__ = [
    "RealAllocator",
    "Script",
    "Results",
    "PhantomError",
    "ScriptError",
    "UnavailableError",
    "RefusedError",
]
