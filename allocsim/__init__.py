"""A bit-exact model of PyTorch's CUDA caching allocator.

    from allocsim import CachingAllocator, explain, load, replay, top, tune

`CachingAllocator` answers requests as PyTorch's own allocator would, address by address;
`explain` says why an out-of-memory error happened, from its text;
`load` reads a recorded memory history and `replay` runs it again, under its own settings or others;
`top` says who held its memory at a moment;
`tune` says which setting a recording would have done best with.

Names are imported when they are first used: `allocsim --help` needs no NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allocsim.core import CachingAllocator
    from allocsim.engine import Hints, replay
    from allocsim.errors import (
        AllocsimError,
        ConfigError,
        InvariantError,
        OutOfMemoryError,
        RecordingError,
        UndefinedBehaviorError,
        UpstreamAssertionError,
    )
    from allocsim.questions.explain import explain
    from allocsim.questions.top import top
    from allocsim.questions.tune import tune
    from allocsim.trace import load

__all__ = [
    "CachingAllocator",
    "Hints",
    "OutOfMemoryError",
    "explain",
    "load",
    "replay",
    "top",
    "tune",
    "AllocsimError",
    "ConfigError",
    "InvariantError",
    "RecordingError",
    "UndefinedBehaviorError",
    "UpstreamAssertionError",
]

_HOMES = {
    "CachingAllocator": "core",
    "Hints": "engine",
    "explain": "questions.explain",
    "load": "trace",
    "replay": "engine",
    "top": "questions.top",
    "tune": "questions.tune",
}
"""The package of each name; the rest are errors."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"allocsim.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
