"""Charts drawn with matplotlib (the extra `plot`), which is imported on first use."""

from allocsim.report.figures.answers import (
    cards_figure,
    front_figure,
    frontier_figure,
    read_answers,
    read_frontier,
)
from allocsim.report.figures.canvas import DARK, LIGHT, Theme, require_matplotlib, save_figure
from allocsim.report.figures.memory import address_map_figure, memory_figure
from allocsim.report.figures.owners import changes_figure, flame_figure
from allocsim.report.figures.segments import block_sizes_figure, segments_figure

__all__ = [
    "DARK", "LIGHT", "Theme", "address_map_figure", "block_sizes_figure", "cards_figure",
    "changes_figure", "flame_figure", "front_figure", "frontier_figure", "memory_figure",
    "read_answers", "read_frontier", "require_matplotlib", "save_figure", "segments_figure",
]  # fmt: skip
