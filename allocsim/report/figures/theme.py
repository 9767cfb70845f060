"""Colours of charts, for light and dark pages.

Categories use the colours of Okabe and Ito, which are distinct with any common colour blindness.
Sizes use steps of viridis.  Source: Okabe and Ito, "Color Universal Design" (2008).

The colour of a pixel is the mean of the memory in it, with one exception: a pixel with any
allocated memory never looks free, and a pixel with any free memory never looks full.  An allocated
share is drawn as at least 1/4, and as at most 9/10 if any memory is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST, MOST = 0.25, 0.9
_TRACE = 1e-4
"""Shares below this value are rounding errors."""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW = "#56B4E9", "#D55E00", "#F0E442"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours by meaning.

    page: background.
    ink: text and axes.
    faint: grids.
    free: reserved memory that is not allocated.
    reserved, allocated, requested, ideal: curves of memory over the run.
    alarm: out-of-memory errors.
    kinds: categories in order; the last is for all others.
    sizes: block sizes, from small to large.
    phases: phases of a training step, in the order of `Course.phases`; the first is "no phase".
    """

    page: str
    ink: str
    faint: str
    free: str
    reserved: str
    allocated: str
    alarm: str
    kinds: tuple[str, ...]
    sizes: tuple[str, ...]
    requested: str = PURPLE
    ideal: str = GREEN
    phases: tuple[str, ...] = ("#8A8A8A", "#B8B0C8", SKY, ORANGE, GREEN)


LIGHT = Theme(
    page="#FFFFFF",
    ink="#1A1A1A",
    faint="#D9D9D9",
    free="#DDDDDD",
    reserved="#555555",
    allocated=BLUE,
    alarm=VERMILION,
    kinds=(BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, "#8A8A8A"),
    sizes=("#440154", "#414487", "#2A788E", "#22A884", "#7AD151", "#E8D51B"),
)
DARK = Theme(
    page="#14171A",
    ink="#E8E8E8",
    faint="#3A3F45",
    free="#4A5058",
    reserved="#C4C4C4",
    allocated=SKY,
    alarm="#FF7B39",
    kinds=(SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILION, "#A0A0A0"),
    sizes=("#5B3A8C", "#4A6FB5", "#2F93A5", "#2BB58A", "#8ADB5A", "#FDE725"),
)


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
