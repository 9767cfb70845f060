"""Flame graph of a page: stacks that hold the memory at one moment, as boxes.

The width of a box is proportional to its bytes.  A reader can zoom into a frame and search a name.

Rule: the graph is complete without scripts; flame.js only moves boxes.  A name is cut at the edge
of its box.
"""

from __future__ import annotations

from allocsim.analysis.top import CATEGORIES, FlameBox, FlameGraph, Top, flame_of
from allocsim.report.html.markup import legend, text
from allocsim.report.layout import number, plural
from allocsim.report.top import moment_text
from allocsim.units import format_size

_LEAST_SHARE = 1 / 4000
"""Share of the memory below which a frame is folded.

Zooming in makes a frame of this width wide enough to point at.
"""
_ROW = 20
"""Height of a row, in pixels."""
_MIXED = "x"
_LABEL = (
    "Flame graph, the outermost frames above. Arrow keys move from frame to frame, Enter zooms in, "
    "Escape shows the whole graph."
)


def flame_panel(top: Top, name: str = "flame") -> str:
    """Return the HTML of the flame graph of `top`, with its controls.

    name: prefix of the HTML ids; each graph of a page needs another prefix.
    """
    flame = flame_of(top, least_share=_LEAST_SHARE)
    held = f"{format_size(top.allocated_bytes)} in {plural(top.blocks, 'block')}"
    heading = f"<p>{text(f'{held}, {moment_text(top.at)}.')}</p>\n"
    notes = "".join(f'<p class="note">{text(note)}</p>\n' for note in top.notes)
    if not flame.boxes:
        return f"{heading}{notes}<p>Nothing was allocated.</p>\n"
    boxes = "\n".join(_box(box, flame) for box in flame.boxes)
    return (
        f"{heading}{notes}{_legend(flame, top)}"
        f'<div class="tools js"><label>Find <input id="{name}-find" type="search">'
        f'</label>\n<button type="button" id="{name}-whole">Whole graph</button>\n'
        f'<span id="{name}-text" role="status" aria-live="polite"></span></div>\n'
        f'<svg id="{name}-graph" class="flame" width="100%" height="{flame.rows * _ROW}" '
        f'tabindex="0" role="application" aria-label="{text(_LABEL)}" '
        f'data-bytes="{flame.bytes}">\n{boxes}\n</svg>\n'
        f'<p class="note">{text(_note(flame))}</p>\n'
    )


def _note(flame: FlameGraph) -> str:
    folded = [box for box in flame.boxes if box.folded]
    words = "Widths are bytes. A frame has a colour if nine tenths of it are of one category."
    if not folded:
        return words
    held = format_size(sum(box.bytes for box in folded))
    stacks = plural(sum(box.folded for box in folded), "stack")
    return (
        f'{words} Frames of less than {flame.least_share:.3%} are folded into "other": '
        f"{held} of {stacks}."
    )


def _kind(category: str) -> str:
    """Return the CSS class with the colour of a category."""
    return f"c{CATEGORIES.index(category) if category else _MIXED}"


def _legend(flame: FlameGraph, top: Top) -> str:
    drawn = {box.category for box in flame.boxes}
    names: dict[str, list[str]] = {}
    for category in (*flame.categories, ""):
        if category in drawn:
            kind = _kind(category)
            held = f"{category} {format_size(top.categories[category])}" if category else ""
            names.setdefault(kind, []).append(held or "several categories")
    return legend((", ".join(each), _colour(kind)) for kind, each in names.items())


def _colour(kind: str) -> str:
    return "--free" if kind == f"c{_MIXED}" else f"--category-{kind[1:]}"


def _box(box: FlameBox, flame: FlameGraph) -> str:
    """Return the SVG of a frame; it is a nested `svg` element because that clips the name."""
    total = flame.bytes
    name = f"other ({plural(box.folded, 'stack')})" if box.folded else box.name
    size = f"{format_size(box.bytes)}, {box.bytes / total:.1%}"
    of = f", {box.category}" if box.category else ""
    label = f"{name}: {size}, {number(box.blocks)} {'block' if box.blocks == 1 else 'blocks'}{of}"
    file = f" ({box.file})" if "/" in box.file or "\\" in box.file else ""
    return (
        f'<svg class="{_kind(box.category)}" x="{box.start / total:.5%}" '
        f'y="{box.depth * _ROW}" width="{box.bytes / total:.5%}" height="{_ROW - 1}" '
        f'data-depth="{box.depth}" data-start="{box.start}" data-bytes="{box.bytes}" '
        f'data-name="{text(name + file)}">'
        f"<title>{text(label + file)}</title>"
        f'<rect width="100%" height="100%"/><text x="4" y="14">{text(name)} '
        f"{format_size(box.bytes)}</text></svg>"
    )
