"""Colour of a pixel from the shares of memory in it.

The colour is the mean over the pixel, with one exception: a pixel with any allocated memory never
looks free, and a pixel with any free memory never looks full.  An allocated share is drawn as at
least 1/4, and as at most 9/10 if any memory is free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST", "MOST", "pixels"]

LEAST, MOST = 0.25, 0.9
_TRACE = 1e-4
"""Shares below this value are rounding errors."""


def pixels(
    reserved: NDArray[np.float32],
    layers: Sequence[NDArray[np.float32]],
    colours: Sequence[str],
    free: str,
    page: str,
) -> NDArray[np.float32]:
    """Return an image of shape (rows, columns, 3): red, green and blue from 0 to 1.

    reserved: share of each pixel that is reserved memory, shape (rows, columns).
    layers: share that is allocated, one array for each of `colours`.
    free, page: colours of reserved memory that is not allocated, and of the rest.
    """
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
