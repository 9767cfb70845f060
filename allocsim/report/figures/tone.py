"""Shares of a pixel as its colour.

Rule: the colour is the mean of what lies in the pixel, except that a pixel with any memory in use
never looks free, and one with any free memory never looks full: a share in use is drawn as at
least a quarter, and if anything is free, as at most nine tenths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST", "MOST", "pixels"]

LEAST, MOST = 0.25, 0.9
_TRACE = 1e-4
"""Shares below this are rounding errors of the sums, not memory."""


def pixels(
    reserved: NDArray[np.float32],
    layers: Sequence[NDArray[np.float32]],
    colours: Sequence[str],
    free: str,
    page: str,
) -> NDArray[np.float32]:
    """An image (rows, columns, 3) of values from 0 to 1."""
    used = np.zeros_like(reserved)
    for layer in layers:
        used += layer
    shown = np.where((used > _TRACE) & (used < LEAST), LEAST, used)
    shown = np.where((reserved - used > _TRACE) & (shown > MOST), MOST, shown)
    scale = np.where(used > _TRACE, shown / np.maximum(used, _TRACE), 0)
    background = np.clip(np.maximum(reserved, used) - shown, 0, 1)
    nothing = np.clip(1 - background - shown, 0, 1)
    image = background[..., None] * _rgb(free) + nothing[..., None] * _rgb(page)
    for layer, colour in zip(layers, colours, strict=True):
        image += (layer * scale)[..., None] * _rgb(colour)
    clipped: NDArray[np.float32] = np.clip(image, 0, 1).astype(np.float32)
    return clipped


def _rgb(colour: str) -> NDArray[np.float32]:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)], dtype=np.float32)
