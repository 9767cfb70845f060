"""Colours of figures, for light and dark pages.

Categories use the colours of Okabe and Ito, which are distinct with any common colour blindness.
Sizes use steps of viridis.  Source: Okabe and Ito, "Color Universal Design" (2008).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DARK", "LIGHT", "Theme"]

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
