"""Memory over the run: reserved, allocated, requested and the least possible, errors marked.

Rule: a curve of more entries than the figure has columns is drawn by its lowest and highest
value in each column, and the caption says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from allocsim.analysis.extremes import extremes_of
from allocsim.analysis.picture import Picture
from allocsim.report.figures.canvas import caption, entries_axis, legend, new_figure, styled
from allocsim.report.page import number, plural
from allocsim.units import GIB, MIB, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from allocsim.report.figures.theme import Theme

__all__ = ["mark_ooms", "memory_figure", "title_of"]

COLUMNS = 1500
"""What the figure can show beside one another."""


def memory_figure(picture: Picture, theme: Theme) -> Figure:
    """The curves above, the driver calls below."""
    figure, (above, below) = new_figure(theme, 2, 1, sharex=True, height_ratios=(4, 1))
    step = max(1, -(-len(picture.curve) // COLUMNS))
    unit, name = _unit(int(picture.curve.reserved.max(initial=0)))
    _curves(above, picture, theme, step, unit)
    _driver_calls(below, picture, theme, step)
    styled(above, theme, "", f"memory ({name})")
    styled(below, theme, "time (entry of the recording)", f"driver calls\n(per {_stretch(step)})")
    entries_axis(below)
    above.set_ylim(bottom=0)
    above.set_ylim(top=above.get_ylim()[1] * 1.04)
    above.set_xlim(0, max(len(picture.curve), 1) * 1.008)
    legend(above, theme, loc="lower right", ncols=3)
    legend(below, theme, loc="lower right", bbox_to_anchor=(1, 0.95), ncols=2)
    decimated = (
        ""
        if step == 1
        else (
            f"Each column shows the lowest and highest of {number(step)} entries; none is skipped."
        )
    )
    caption(figure, theme, title_of(picture, "memory"), _IDEAL, decimated)
    return figure


_IDEAL = (
    "Ideal: the most that was in use at once so far, rounded to 512 bytes a block; no allocator "
    "that gives nothing back reserves less."
)


def _stretch(step: int) -> str:
    return "entry" if step == 1 else f"{number(step)} entries"


def _unit(most: int) -> tuple[int, str]:
    return (GIB, "GiB") if most >= 2 * GIB else (MIB, "MiB")


def title_of(picture: Picture, what: str) -> str:
    """What is shown, of which recording under which settings."""
    name = picture.run.path.rsplit("/", 1)[-1]
    conf = picture.run.conf or "default settings"
    device = picture.device_run.device
    return f"{name}: {what}, {conf}" + (f", device {device}" if device else "")


def _curves(axes: Axes, picture: Picture, theme: Theme, step: int, unit: int) -> None:
    curve = picture.curve
    for name, values, style in (
        ("reserved", curve.reserved, {"color": theme.reserved, "linewidth": 1.4}),
        ("requested", curve.requested, {"color": theme.requested, "linewidth": 0.7}),
        ("allocated", curve.allocated, {"color": theme.allocated, "linewidth": 1.0}),
        ("ideal", curve.ideal, {"color": theme.ideal, "linewidth": 1.2}),
    ):
        found = extremes_of(values, step)
        x = np.arange(len(found.low)) * step + (step - 1) / 2
        if step == 1:
            axes.step(x, found.high / unit, where="post", label=name, **style)  # type: ignore[arg-type]
            continue
        axes.fill_between(
            x, found.low / unit, found.high / unit, color=style["color"], alpha=0.35, linewidth=0
        )
        axes.plot(x, found.high / unit, label=name, **style)  # type: ignore[arg-type]
    _limits(axes, picture, theme, unit)


def _limits(axes: Axes, picture: Picture, theme: Theme, unit: int) -> None:
    """The device, and the errors with what they would have needed."""
    ooms = picture.device_run.ooms
    if ooms:
        entries = [oom.entry for oom in ooms]
        needed = [(o.reserved_bytes + (o.tried_bytes or o.rounded_bytes)) / unit for o in ooms]
        mark_ooms(axes, entries, theme)
        axes.plot(
            entries,
            needed,
            marker="v",
            color=theme.alarm,
            linestyle="",
            zorder=5,
            label=f"{plural(len(ooms), 'out-of-memory error')}, and what it needed",
        )
    memory = picture.device_run.device_memory
    if memory is not None and memory < 2 * picture.curve.reserved.max(initial=1):
        axes.axhline(memory / unit, color=theme.ink, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"device memory {format_size(memory)}",
            (0.005, memory / unit),
            xycoords=("axes fraction", "data"),
            va="bottom", fontsize=8, color=theme.ink,
        )  # fmt: skip


def mark_ooms(axes: Axes, entries: list[int], theme: Theme) -> None:
    """A line from top to bottom at each error."""
    style: dict[str, Any] = {"color": theme.alarm, "linewidth": 1.2, "linestyle": "--"}
    axes.vlines(entries, 0, 1, transform=axes.get_xaxis_transform(), zorder=4, **style)


def _driver_calls(axes: Axes, picture: Picture, theme: Theme, step: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415

    curve = picture.curve
    take, give = ("map", "unmap") if picture.is_expandable else ("cudaMalloc", "cudaFree")
    edges = np.arange(0, len(curve) + step, step)
    for name, entries, colour, sign in (
        (f"{take}, {number(len(curve.driver_takes))} in all", curve.driver_takes, theme.ideal, 1),
        (f"{give}, {number(len(curve.driver_gives))} in all", curve.driver_gives, theme.alarm, -1),
    ):
        counts = np.histogram(entries, edges)[0]
        at = np.flatnonzero(counts)
        axes.vlines(edges[at] + (step - 1) / 2, 0, sign * counts[at], color=colour, label=name)
    axes.axhline(0, color=theme.ink, linewidth=0.6)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{abs(y):.0f}"))
