"""Charts of the owners of memory: a flame graph of one moment, and the changes between two runs.

Widths in a flame graph are proportional to bytes.  The bars of changes add up to the difference in
allocated memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from allocsim._repr import printable
from allocsim.analysis.compare import Comparison, Side
from allocsim.analysis.top import FlameBox, FlameGraph, Top, flame_of
from allocsim.report.compare import PARTS
from allocsim.report.figures.canvas import (
    LIGHT,
    Theme,
    caption,
    legend,
    legend_above,
    new_figure,
    points,
    styled,
    unit_of,
)
from allocsim.report.layout import clipped, plural, with_status
from allocsim.report.top import moment_text
from allocsim.units import format_change, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch


_FRAME_HEIGHT, _ROW_HEIGHT = 1.9, 0.21
"""Height in inches of a figure without rows, and of a row."""
_LEAST_ROWS = 6
_LETTERS = 7
"""Font size of names, in points."""
_MARGIN = 3
"""Margin on both sides of a name, in points."""
_FEWEST_LETTERS = 4
_NARROW = 1 / 300
"""Width of a box, as a share of the axis, below which its outline would hide it and is omitted."""
_MIXED = "several categories"


def flame_figure(top: Top, theme: Theme = LIGHT, *, is_one_of: bool = False) -> Figure:
    """Draw the owners in `top` as a flame graph.

    is_one_of: name the device in the title, since the recording has several devices.
    """
    flame = flame_of(top)
    rows = max(flame.rows, _LEAST_ROWS)
    figure, (axes,) = new_figure(theme, height=_FRAME_HEIGHT + _ROW_HEIGHT * rows)
    unit, name = unit_of(flame.bytes)
    colours = _colours(flame, theme)
    for depth in range(flame.rows):
        boxes = [box for box in flame.boxes if box.depth == depth]
        axes.broken_barh(
            [(box.start / unit, box.bytes / unit) for box in boxes], (depth, 1), linewidth=0.5,
            facecolor=[colours[box.category] for box in boxes],
            edgecolor=[
                colours[box.category] if box.bytes < _NARROW * flame.bytes else theme.page
                for box in boxes
            ],
        )  # fmt: skip
    styled(axes, theme, f"memory ({name})", "stack (depth)")
    axes.grid(visible=False)
    axes.set_yticks([])
    axes.set_xlim(0, max(flame.bytes, 1) / unit)
    axes.set_ylim(rows, 0)
    legend_above(axes, theme, _patches(top, flame, theme, colours))
    caption(figure, theme, _title(top, is_one_of=is_one_of), *_notes(top, flame))
    _name_boxes(axes, flame, theme, unit)
    return figure


def _title(top: Top, *, is_one_of: bool) -> str:
    name = top.path.rsplit("/", 1)[-1]
    device = f", device {top.device}" if top.device or is_one_of else ""
    held = f"{format_size(top.allocated_bytes)} in {plural(top.blocks, 'block')}"
    return f"{name}{device}: {held} by stack, {moment_text(top.at)}"


def _notes(top: Top, flame: FlameGraph) -> list[str]:
    notes = [f"{note[:1].upper()}{note[1:]}." for note in top.notes]
    mostly = "A frame has a colour if nine tenths of its memory are of one category."
    if not flame.boxes:
        return [*notes, "Nothing was allocated."]
    others = [box for box in flame.boxes if box.folded]
    if not others:
        return [*notes, mostly]
    stacks = plural(sum(box.folded for box in others), "stack")
    held = format_size(sum(box.bytes for box in others))
    return [
        *notes,
        mostly,
        f'Frames of less than {flame.least_share:.2%} of the memory are folded into "other": '
        f"{held} of {stacks}.",
    ]


def _colours(flame: FlameGraph, theme: Theme) -> dict[str, str]:
    *kinds, rest = theme.kinds
    named = dict(zip(flame.categories, kinds, strict=False))
    return {"": theme.free, **dict.fromkeys(flame.categories, rest), **named}


def _patches(top: Top, flame: FlameGraph, theme: Theme, colours: dict[str, str]) -> list[Patch]:
    from matplotlib.patches import Patch  # noqa: PLC0415

    drawn = {box.category for box in flame.boxes}
    names: dict[str, list[str]] = {}
    for category, colour in colours.items():
        if category in drawn:
            held = f"{category} {format_size(top.categories[category])}" if category else _MIXED
            names.setdefault(colour, []).append(held)
    mixed = names.pop(theme.free, [])
    patches = [Patch(color=colour, label=", ".join(each)) for colour, each in names.items()]
    return [*patches, *(Patch(color=theme.free, label=label) for label in mixed)]


def _name_boxes(axes: Axes, flame: FlameGraph, theme: Theme, unit: int) -> None:
    from matplotlib.colors import to_rgb  # noqa: PLC0415

    figure = axes.figure
    figure.draw_without_rendering()  # type: ignore[union-attr]
    width = axes.get_window_extent().width / figure.dpi * 72
    colours = _colours(flame, theme)
    for box in flame.boxes:
        text = _fitted(_label(box), width * box.bytes / flame.bytes - 2 * _MARGIN)
        if not text:
            continue
        red, green, blue = to_rgb(colours[box.category])
        is_dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.45
        axes.annotate(
            text, (box.start / unit, box.depth + 0.5),
            xytext=(_MARGIN, 0), textcoords="offset points", va="center_baseline",
            fontsize=_LETTERS, color="#FFFFFF" if is_dark else "#1A1A1A", parse_math=False,
        ).set_in_layout(False)  # fmt: skip


def _label(box: FlameBox) -> str:
    name = f"other ({plural(box.folded, 'stack')})" if box.folded else box.name
    return printable(f"{name}  {format_size(box.bytes)}")


def _fitted(text: str, width: float) -> str:
    length = len(text)
    while length >= _FEWEST_LETTERS:
        shown = text if length == len(text) else f"{text[: length - 1].rstrip()}…"
        needed = points(shown, _LETTERS)
        if needed <= width:
            return shown
        length = min(length - 1, int(length * width / needed) + 1)
    return ""


_MOST = 12
"""Largest number of owners with their own bar."""
_NAME = 44
"""Largest number of characters in an owner's name."""


def changes_figure(found: Comparison, theme: Theme = LIGHT) -> Figure:
    """Draw the memory curves of both runs, and a bar for each owner whose memory changed most."""
    figure, (curves, bars) = new_figure(theme, 1, 2, width_ratios=[2, 3])
    _curves(curves, found, theme)
    _bars(bars, found, theme)
    a, b = found.a, found.b
    title = (
        f"reserved at the peak {format_size(a.reserved.reserved)} -> "
        f"{format_size(b.reserved.reserved)}, allocated {format_change(found.allocated_change)}"
    )
    parts = [f"{format_change(getattr(found.parts, name))} {what}" for name, what in PARTS.items()]
    parts[-1] += "; of an owner's bar the rose part is rounding"
    caption(figure, theme, title, f"A: {a.path}. B: {b.path}.", f"Reserved: {', '.join(parts)}.")
    return figure


def _curves(axes: Axes, found: Comparison, theme: Theme) -> None:
    sides = [("A", found.a, "--"), ("B", found.b, "-")]
    drawn = [(name, side, line) for name, side, line in sides if side.outline is not None]
    unit, shown = unit_of(max(side.reserved.reserved for _, side, _ in sides))
    for name, side, line in drawn:
        for what, colour in (("reserved", theme.reserved), ("allocated", theme.allocated)):
            x, y = _steps(side, what)
            label = f"{what}, {name}"
            axes.plot(x, y / unit, line, color=colour, lw=1, label=label, drawstyle="steps-post")
    if drawn:
        legend(axes, theme, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    else:
        axes.text(0.5, 0.5, "states only", color=theme.ink, ha="center", transform=axes.transAxes)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 1.12 * axes.get_xlim()[1])
    step = float(f"{(0.4 * axes.get_xlim()[1]):.0e}")
    axes.set_xticks([0, step, 2 * step])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    styled(axes, theme, "entry (count)", f"memory ({shown})")


def _steps(side: Side, what: str) -> tuple[np.ndarray, np.ndarray]:
    outline = side.outline
    assert outline is not None
    values = np.array(getattr(outline, what))
    return np.linspace(0, outline.entries, len(values), endpoint=False), values


def _bars(axes: Axes, found: Comparison, theme: Theme) -> None:
    shown = list(_changes_of_bars(found))
    unit, name = unit_of(max((abs(asked + more) for _, asked, more in shown), default=0))
    for row, (_, asked, rounding) in enumerate(reversed(shown)):
        colour = theme.alarm if asked + rounding > 0 else theme.ideal
        axes.barh(row, asked / unit, 0.7, color=colour, zorder=3)
        begins = asked / unit if asked * rounding > 0 else 0
        axes.barh(row, rounding / unit, 0.7, begins, color=theme.requested, zorder=4)
    axes.axvline(0, color=theme.ink, lw=1)
    labels = [owner for owner, _, _ in reversed(shown)]
    axes.set_yticks(range(len(labels)), labels, fontsize=7, parse_math=False)
    axes.yaxis.tick_right()
    styled(axes, theme, f"change of allocated memory, A to B ({name})", "")


def _changes_of_bars(found: Comparison) -> Iterator[tuple[str, int, int]]:
    # Name, change in requested bytes, change in bytes added by rounding.
    changed = [each for each in found.changes if each.bytes]
    for each in changed[:_MOST]:
        yield clipped(with_status(each.status, each.owner), _NAME), each.requested, each.rounding
    rest = changed[_MOST:]
    if rest:
        owners = plural(len(rest), found.by) if found.by != "category" else f"{len(rest):,}"
        asked = sum(each.requested for each in rest)
        yield f"{owners} more", asked, sum(each.rounding for each in rest)
