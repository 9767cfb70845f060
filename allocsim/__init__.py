"""A bit-exact model of PyTorch's CUDA caching allocator.

    from allocsim import CachingAllocator, load, replay

`CachingAllocator` answers requests as PyTorch's own allocator would, address by address;
`load` reads a recorded memory history and `replay` runs it again, under its own settings or others.

Names are imported when they are first used: `allocsim --help` needs no NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {"CachingAllocator": "core", "load": "trace", "replay": "engine"}
"""The package of each name; the rest are errors."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"allocsim.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
