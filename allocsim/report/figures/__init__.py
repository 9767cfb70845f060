"""Charts drawn with matplotlib (the extra `plot`), which is imported on first use."""

from allocsim.report.figures.address_map import address_map_figure
from allocsim.report.figures.block_sizes import block_sizes_figure
from allocsim.report.figures.canvas import require_matplotlib, save_figure
from allocsim.report.figures.changes import changes_figure
from allocsim.report.figures.fit import cards_figure, frontier_figure
from allocsim.report.figures.flame import flame_figure
from allocsim.report.figures.front import front_figure
from allocsim.report.figures.memory import memory_figure
from allocsim.report.figures.segments import segments_figure
from allocsim.report.figures.theme import DARK, LIGHT, Theme

__all__ = [
    "DARK", "LIGHT", "Theme", "address_map_figure", "block_sizes_figure", "cards_figure",
    "changes_figure",
    "flame_figure", "front_figure", "frontier_figure", "memory_figure",
    "require_matplotlib", "save_figure", "segments_figure",
]  # fmt: skip
