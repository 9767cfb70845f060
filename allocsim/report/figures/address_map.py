"""Address map: a chart of the addresses of all blocks and segments over the entries of a run.

A pixel shows which share of the entries and bytes that it covers is in use
(`allocsim/analysis/picture/address_map.py`).  The caption has the entries and bytes per pixel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from allocsim._repr import printable
from allocsim.analysis.picture import AddressMap, Picture, address_map
from allocsim.report.figures.canvas import (
    caption,
    legend_above,
    new_figure,
    styled,
    unit_of,
    whole_numbers,
)
from allocsim.report.figures.memory import mark_ooms, title_of, warnings_of
from allocsim.report.figures.theme import LIGHT, pixels
from allocsim.report.layout import plural
from allocsim.units import MIB, format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from allocsim.report.figures.theme import Theme

SHAPE = (700, 1500)
"""Number of pixel rows and columns."""

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
    """Return a legend patch for each colour that occurs in the map."""
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
