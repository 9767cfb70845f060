"""Choose the streams of a random script, and their raw handles.

Rule: in some scripts PyTorch's hash tables of streams overflow, because many handles
hash to few of the 16 slots (semantics 12.1).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

__all__ = ["MANY", "RandomStreams"]

_FEW = ([0], [0], [0, 1], [0, 1, 2], [0, 3, 7, 9, 21, 40])
MANY = 8
"""Least number of streams with which a hash table can overflow."""
_COUNTS = (MANY, 12, 16)
_LARGEST_HANDLE = 1 << 47
_ALIGNMENT = 16
_GOLDEN = 11400714819323198485
_SLOTS = 16
_CROWDED_SLOTS = (2, 3, 3, 4, _SLOTS)
"""Number of neighbouring slots to which all handles of a script hash."""


@dataclass(frozen=True, slots=True)
class RandomStreams:
    """Streams of a script.

    numbers: stream numbers.
    handles: raw handles by stream number, where it is not number * 4096.
    """

    numbers: list[int]
    handles: dict[int, int] = field(default_factory=dict)

    @classmethod
    def make(cls, rng: random.Random) -> RandomStreams:
        """Return a few streams with default handles, or many whose handles hash to few slots."""
        if rng.random() < 0.6:
            return cls(rng.choice(_FEW))
        numbers = list(range(rng.choice(_COUNTS) + 1))
        first, width = rng.randrange(_SLOTS), rng.choice(_CROWDED_SLOTS)
        handles: dict[int, int] = {}
        while len(handles) < len(numbers) - 1:
            handle = rng.randrange(1, _LARGEST_HANDLE // _ALIGNMENT) * _ALIGNMENT
            if (_slot(handle) - first) % _SLOTS < width:
                handles[len(handles) + 1] = handle
        return cls(numbers, handles)


def _slot(handle: int) -> int:
    """Return the slot of a stream of device 0 in a hash table of 16 slots."""
    return (_GOLDEN * (1 << 56 | handle) % (1 << 64)) * _SLOTS >> 64
