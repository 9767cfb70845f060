"""Histograms of block sizes: number of blocks over the run, and memory at one moment.

Both histograms have the same bins, powers of two, so free memory is above the requests that could
use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from allocsim.analysis.picture import Picture, Still, block_sizes
from allocsim.report.figures.canvas import caption, legend, new_figure, styled
from allocsim.report.figures.memory import title_of, warnings_of
from allocsim.report.figures.theme import LIGHT
from allocsim.report.layout import plural, when
from allocsim.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from allocsim.report.figures.theme import Theme

_FEW = 200
"""Height of the tallest bar below which an axis with decades only would have too few labels."""


def block_sizes_figure(
    picture: Picture | Still, theme: Theme = LIGHT, at: str | int | None = None
) -> Figure:
    """Draw two histograms by block size: number of blocks over the run, memory at one moment.

    at: moment of the memory, as in `Picture.at`; None for the peak of reserved memory.
    """
    instant = picture.at(at)
    is_still = isinstance(picture, Still)
    sizes = block_sizes(None if isinstance(picture, Still) else picture.lives, instant)
    figure, (above, below) = new_figure(theme, 2, 1, sharex=True)
    x = np.arange(len(sizes.handed_out))
    above.bar(x, sizes.handed_out, width=0.9, color=theme.allocated)
    _count_axis(above, int(sizes.handed_out.max(initial=1)))
    most = int(max(sizes.used_bytes.max(initial=0), sizes.free_bytes.max(initial=0)))
    unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
    below.bar(x - 0.22, sizes.used_bytes / unit, width=0.44, color=theme.kinds[0], label="in use")
    below.bar(x + 0.22, sizes.free_bytes / unit, width=0.44, color=theme.alarm, label="free")
    styled(above, theme, "", f"blocks {'in use' if is_still else 'allocated'} (count)")
    styled(below, theme, "size of the block (from, in bytes)", f"memory ({name})")
    below.set_ylim(0, 1.05 * max(most, MIB) / unit)
    below.set_xticks(x, [_text(int(edge)) for edge in sizes.edges[:-1]], rotation=45, ha="right")
    legend(below, theme, loc="lower right", bbox_to_anchor=(1, 0.97), ncols=2)
    total = int(sizes.handed_out.sum())
    caption(
        figure,
        theme,
        title_of(picture, "block sizes"),
        *warnings_of(picture),
        f"Above: {plural(total, 'block')} "
        f"{'in use' if is_still else 'over the whole recording'}. Below: the blocks "
        f"{when(instant)}.",
        "A bar at 1 MiB holds sizes from 1 MiB up to, not including, 2 MiB.",
    )
    return figure


def _count_axis(axes: Axes, most: int) -> None:
    """Make the y axis logarithmic for counts from 0 to `most`, and label minor ticks if few fit."""
    from matplotlib.ticker import StrMethodFormatter, SymmetricalLogLocator  # noqa: PLC0415

    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 1.3 * most)
    steps = (1, 2, 5) if most < _FEW else (1,)
    axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1, subs=steps))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _text(size: int) -> str:
    for unit, name in ((GIB, "Gi"), (MIB, "Mi"), (KIB, "Ki")):
        if size >= unit:
            return f"{size // unit} {name}B"
    return f"{size} B"
