"""A bit-exact model of PyTorch's CUDA caching allocator.

    from allocsim import CachingAllocator, load, replay

`CachingAllocator` answers requests as PyTorch's own allocator would, address by address;
`load` reads a recorded memory history and `replay` runs it again, under its own settings or others.
"""

from allocsim.core import CachingAllocator
from allocsim.engine import replay
from allocsim.errors import (
    AllocsimError,
    ConfigError,
    InvariantError,
    OutOfMemoryError,
    RecordingError,
    UndefinedBehaviorError,
    UpstreamAssertionError,
)
from allocsim.trace import load

__all__ = [
    "CachingAllocator",
    "OutOfMemoryError",
    "load",
    "replay",
    "AllocsimError",
    "ConfigError",
    "InvariantError",
    "RecordingError",
    "UndefinedBehaviorError",
    "UpstreamAssertionError",
]
