"""Compress columns of integers into text for a page, decoded by a few lines of JavaScript.

The encoding is lossless: differences of neighbours in the smallest integer type, all columns
concatenated, compressed and encoded as base64.  Numbers above 2**53 are refused, because JavaScript
cannot represent them.
"""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Packer"]

_TYPES: tuple[Any, ...] = (np.int8, np.int16, np.int32, np.float64)
_LARGEST = 1 << 53
_LEVEL = 4
_ALIGNMENT = 8


@dataclass(slots=True)
class Packer:
    """Collector of columns; `index` has type, length and offset of each column in `text()`."""

    index: dict[str, list[object]] = field(default_factory=dict)
    _parts: list[bytes] = field(default_factory=list)
    _offset: int = 0

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Add a column; raise ValueError for an integer above 2**53."""
        if len(values) and max(abs(int(values.min())), abs(int(values.max()))) > _LARGEST:
            raise ValueError(f"column {name} has numbers above 2**53")
        changes = np.diff(values.astype(np.int64), prepend=0).astype(np.int64)
        kind = next(kind for kind in _TYPES if _holds(kind, changes))
        data = changes.astype(kind).tobytes()
        self.index[name] = [np.dtype(kind).name, len(values), self._offset]
        padding = -len(data) % _ALIGNMENT
        self._parts += [data, bytes(padding)]
        self._offset += len(data) + padding

    def text(self) -> str:
        """Return all added columns, compressed, as base64."""
        packed = gzip.compress(b"".join(self._parts), _LEVEL, mtime=0)
        return base64.b64encode(packed).decode("ascii")


def _holds(kind: Any, changes: NDArray[np.int64]) -> bool:
    if kind is np.float64 or not len(changes):
        return True
    limits = np.iinfo(kind)
    return bool(changes.min() >= limits.min and changes.max() <= limits.max)
