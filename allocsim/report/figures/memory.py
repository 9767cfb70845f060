"""Charts over a run: memory curves with errors and driver calls, and the map of addresses.

A pixel covers several entries.  A curve shows its minimum and maximum over these entries, and the
map shows the share of the pixel's area that is in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from allocsim._repr import printable
from allocsim.analysis.picture import AddressMap, Picture, Still, address_map
from allocsim.analysis.top import Course
from allocsim.metrics import extremes_of
from allocsim.report.figures.canvas import (
    LIGHT,
    Theme,
    caption,
    legend,
    legend_above,
    new_figure,
    pixels,
    styled,
    unit_of,
    whole_numbers,
)
from allocsim.report.layout import plural, shown_of
from allocsim.units import MIB, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from numpy.typing import NDArray


COLUMNS = 1500
"""Largest number of pixel columns into which the entries of a run are divided."""
_FEW_STEPS = 60
_TINT = 0.2
_FEW_OOMS = 60
"""Largest number of errors that are drawn as lines across the figure."""


def memory_figure(picture: Picture, theme: Theme = LIGHT, course: Course | None = None) -> Figure:
    """Draw the memory curves of a run, with the driver calls below them.

    course: steps and phases of the program, drawn in the background; None if unknown.
    """
    figure, (above, below) = new_figure(theme, 2, 1, sharex=True, height_ratios=(4, 1))
    step = max(1, -(-len(picture.curve) // COLUMNS))
    unit, name = unit_of(max(int(picture.curve.reserved.max(initial=0)), *_needs(picture), 0))
    _curves(above, picture, theme, step, unit)
    _driver_calls(below, picture, theme, step)
    styled(above, theme, "", f"memory ({name})")
    stretch = "entry" if step == 1 else f"{step:,} entries"
    styled(below, theme, "time (entry of the recording)", f"driver calls\n(per {stretch})")
    whole_numbers(below.xaxis)
    above.set_ylim(bottom=0)
    above.set_ylim(top=above.get_ylim()[1] * 1.04)
    if course is not None:
        _draw_phases(above, course, len(picture.curve), theme)
    above.set_xlim(-0.004 * len(picture.curve), 1.008 * len(picture.curve))
    legend_above(above, theme)
    legend(below, theme, loc="lower right", bbox_to_anchor=(1, 0.95), ncols=2)
    columns = f"Each column shows the lowest and highest of {stretch}; none is skipped."
    notes = [_IDEAL] if step == 1 else [_IDEAL, columns]
    caption(figure, theme, title_of(picture, "memory"), *warnings_of(picture), *notes)
    return figure


_IDEAL = (
    "Ideal: the most memory in use at once so far, with blocks rounded to 512 bytes; an allocator "
    "that releases nothing cannot reserve less."
)


def title_of(picture: Picture | Still, what: str) -> str:
    """Return the title of a chart: `what` it shows, the recording's name and unusual settings."""
    if isinstance(picture, Still):
        named = picture.trace.device or picture.others
        device = f", device {picture.trace.device}" if named else ""
        return f"{picture.path.rsplit('/', 1)[-1]}: {what}{device}"
    name = picture.run.path.rsplit("/", 1)[-1]
    conf = picture.run.conf or "default settings"
    number = picture.device_run.device
    title = f"{name}: {what}, {conf.replace(',', ', ')}"
    title += f", device {number}" if number or picture.others else ""
    return title if picture.device_run.parting is None else f"{title} (unproved)"


def warnings_of(picture: Picture | Still) -> list[str]:
    return [f"{each}." for each in shown_of(picture)]


def _curves(axes: Axes, picture: Picture, theme: Theme, step: int, unit: int) -> None:
    # Later curves are thinner, so that coinciding curves stay visible. If a column has several
    # entries (`step`), spikes would hide dashes.
    curve = picture.curve
    asked: dict[str, Any] = {"color": theme.requested, "linewidth": 0.8}
    asked |= {"linestyle": (0, (4, 4)), "zorder": 2.1} if step == 1 else {"zorder": 1.9}
    styles: tuple[tuple[str, NDArray[np.int64], dict[str, Any]], ...] = (
        ("reserved", curve.reserved, {"color": theme.reserved, "linewidth": 2.2}),
        ("ideal", curve.ideal, {"color": theme.ideal, "linewidth": 1.7}),
        ("allocated", curve.allocated, {"color": theme.allocated, "linewidth": 1.0}),
        ("requested", curve.requested, asked),
    )
    for name, values, style in styles:
        found = extremes_of(values, step)
        high = found.high / unit
        if step == 1:
            axes.step(range(len(high) + 1), [*high, *high[-1:]], where="post", label=name, **style)
            continue
        x = np.arange(len(high)) * step + (step - 1) / 2
        axes.fill_between(x, found.low / unit, high, color=style["color"], alpha=0.35, linewidth=0)
        axes.plot(x, high, label=name, **style)
    _errors(axes, picture, theme, unit)
    _device(axes, picture, theme, unit)


def _draw_phases(axes: Axes, course: Course, n: int, theme: Theme) -> None:
    # A column of the image with several phases has the colour of the phase at its middle.
    middles = (np.arange(COLUMNS) + 0.5) * n / COLUMNS
    kinds = course.phase[np.searchsorted(course.phase_starts, middles, side="right") - 1]
    if n <= COLUMNS:
        edges, kinds = np.append(course.phase_starts, n), course.phase
    else:
        edges = np.arange(COLUMNS + 1) * n / COLUMNS
    for kind, name in enumerate(course.phases):
        rows = np.flatnonzero(kinds == kind)
        if not name or not len(rows):
            continue
        axes.broken_barh(
            _joined_ranges(edges[rows], edges[rows + 1]), (0, 1),
            transform=axes.get_xaxis_transform(), facecolor=theme.phases[kind - 1], alpha=_TINT,
            linewidth=0, zorder=0, label=name,
        )  # fmt: skip
    starts = course.step_starts[course.step_starts > 0]
    if 0 < len(starts) <= _FEW_STEPS:
        axes.vlines(
            starts, 0, 1, transform=axes.get_xaxis_transform(), color=theme.ink, linewidth=0.5,
            alpha=0.6, zorder=0.5,
            label=f"{plural(len(course.step_starts), 'step')}, where each begins",
        )  # fmt: skip


def _joined_ranges(first: NDArray[Any], last: NDArray[Any]) -> list[tuple[float, float]]:
    # Adjacent ranges are joined, as (start, length).
    begins = np.append(True, first[1:] > last[:-1])
    ends = np.append(begins[1:], True)
    return list(zip(first[begins], last[ends] - first[begins], strict=True))


def _needs(picture: Picture) -> list[int]:
    # Reserved bytes if the failed requests had succeeded.
    ooms = picture.device_run.ooms
    return [oom.reserved_bytes + (oom.tried_bytes or oom.rounded_bytes) for oom in ooms]


def _errors(axes: Axes, picture: Picture, theme: Theme, unit: int) -> None:
    entries = np.array([oom.entry for oom in picture.device_run.ooms])
    if not len(entries):
        return
    mark_ooms(axes, entries, theme)
    few = len(entries) <= _FEW_OOMS
    needed = "what it needed" if len(entries) == 1 else "what they needed"
    axes.plot(
        entries,
        np.array(_needs(picture)) / unit,
        marker="v" if few else ".", markersize=6 if few else 2.5, color=theme.alarm, linestyle="",
        zorder=5, rasterized=len(entries) > COLUMNS,
        label=f"{plural(len(entries), 'out-of-memory error')}, and {needed}",
    )  # fmt: skip


def _device(axes: Axes, picture: Picture, theme: Theme, unit: int) -> None:
    memory = picture.device_run.device_memory
    if memory is None or memory >= 2 * picture.curve.reserved.max(initial=1):
        return
    axes.axhline(memory / unit, color=theme.ink, linewidth=0.8, linestyle=":")
    axes.annotate(
        f"device memory {format_size(memory)}",
        (0.008, memory / unit),
        xytext=(0, 2.5), xycoords=("axes fraction", "data"), textcoords="offset points",
        va="bottom", fontsize=8, color=theme.ink, zorder=6,
        bbox={"facecolor": theme.page, "edgecolor": "none", "pad": 0.5},
    )  # fmt: skip


def mark_ooms(axes: Axes, entries: NDArray[np.int64], theme: Theme) -> LineCollection:
    # Many lines would hide the curves, so there are short markers above the axes instead.
    few = len(entries) <= _FEW_OOMS
    return axes.vlines(
        entries, 0 if few else 1, 1 if few else 1.015, clip_on=few,
        transform=axes.get_xaxis_transform(), zorder=4, color=theme.alarm,
        linewidth=1.2 if few else 0.6, linestyle="--" if few else "-",
        rasterized=len(entries) > COLUMNS,
    )  # fmt: skip


def _driver_calls(axes: Axes, picture: Picture, theme: Theme, step: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415

    curve = picture.curve
    take, give = ("map", "unmap") if picture.is_expandable else ("cudaMalloc", "cudaFree")
    edges = np.arange(0, len(curve) + step, step)
    for name, entries, colour, sign in (
        (f"{take}, {len(curve.driver_takes):,} in total", curve.driver_takes, theme.ideal, 1),
        (f"{give}, {len(curve.driver_gives):,} in total", curve.driver_gives, theme.alarm, -1),
    ):
        counts = np.histogram(entries, edges)[0]
        at = np.flatnonzero(counts)
        axes.vlines(edges[at] + (step - 1) / 2, 0, sign * counts[at], color=colour, label=name)
    axes.axhline(0, color=theme.ink, linewidth=0.6)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{abs(y):.0f}"))


SHAPE = (700, 1500)
"""Number of pixel rows and columns of an address map."""

_LONGEST_NAME = 34


def address_map_figure(picture: Picture, theme: Theme = LIGHT, colouring: str = "state") -> Figure:
    """Draw the address map of a run.

    colouring: property that gives blocks their colour: "state", "size" or "owner".
    """
    found = address_map(picture.lives, picture.trace.frame_table, colouring, SHAPE)
    colours = _colours(theme, colouring, len(found.layers))
    figure, (axes,) = new_figure(theme)
    top = max(found.axis_bytes, MIB)
    unit, name = unit_of(top)
    axes.imshow(
        pixels(found.reserved, list(found.layers.values()), colours, theme.free, theme.page),
        origin="lower", aspect="auto", interpolation="nearest",
        extent=(0, found.n_entries, 0, top / unit),
    )  # fmt: skip
    styled(axes, theme, "time (entry of the recording)", f"address, gaps removed ({name})")
    axes.grid(visible=False)
    axes.set_xlim(0, found.n_entries * 1.008)
    whole_numbers(axes.xaxis)
    ooms = np.array([oom.entry for oom in picture.device_run.ooms])
    marks = mark_ooms(axes, ooms, theme)
    marks.set_label("out of memory")
    patches = _patches(picture, theme, list(found.layers), colours)
    legend_above(axes, theme, [*patches, marks] if len(ooms) else patches)
    caption(
        figure,
        theme,
        title_of(picture, f"address map by {colouring}"),
        *warnings_of(picture),
        f"{plural(found.n_blocks, 'block')}, {plural(found.n_entries, 'entry', 'entries')}.",
        _density(found),
    )
    return figure


def _density(found: AddressMap) -> str:
    if not found.axis_bytes:
        return "Nothing was ever reserved."
    return (
        f"A pixel is {plural(max(1, round(found.entries_per_column)), 'entry', 'entries')} wide "
        f"and {format_size(max(1, round(found.bytes_per_row)))} high and shows what was in it by "
        "its share; none is skipped, and what is smaller than a quarter of its pixel is drawn as a "
        "quarter. Addresses that were never reserved are left out."
    )


def _colours(theme: Theme, colouring: str, count: int) -> list[str]:
    if colouring == "size":
        return list(theme.sizes)
    if colouring == "state":
        return list(theme.kinds[:2])
    return list(theme.kinds[:count])


def _patches(picture: Picture, theme: Theme, names: list[str], colours: list[str]) -> list[Patch]:
    from matplotlib.patches import Patch  # noqa: PLC0415

    waits = bool(np.any(picture.lives.blocks.completed > picture.lives.blocks.freed))
    return [
        *(
            Patch(color=colour, label=_short(name))
            for name, colour in zip(names, colours, strict=True)
            if waits or not name.startswith("freed")
        ),
        Patch(facecolor=theme.free, label="reserved, free"),
        Patch(facecolor=theme.page, edgecolor=theme.faint, label="not reserved"),
    ]


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
