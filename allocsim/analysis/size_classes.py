"""Blocks sorted into a few classes of size, for colours and for counting.

Rule: a class holds sizes above the one before and up to its own limit, so that a block of
exactly 1 MiB, the largest of the small pool, is in the class that ends there (semantics 1.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allocsim.units import KIB, MIB

__all__ = ["CLASS_NAMES", "class_of"]

_LIMITS = (16 * KIB, MIB, 10 * MIB, 50 * MIB, 200 * MIB)


def _text(size: int) -> str:
    """ "16 KiB", "1 MiB"."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


CLASS_NAMES = (
    *(f"up to {_text(limit)}" for limit in _LIMITS),
    f"above {_text(_LIMITS[-1])}",
)


def class_of(size: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each block's class."""
    return np.searchsorted(np.array(_LIMITS), size, side="left")
