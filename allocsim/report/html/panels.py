"""Panels of an HTML report: verdict and setting to paste, tables of memory owners, flame graph.

All rows and boxes are in the HTML; scripts only sort, hide and move them.
"""

from __future__ import annotations

from collections.abc import Sequence

from allocsim.analysis.explain import DeviceExplanation
from allocsim.analysis.picture import Picture
from allocsim.analysis.top import CATEGORIES, FlameBox, FlameGraph, Top, TopRow, flame_of
from allocsim.report.answer import paste_lines, paste_notes
from allocsim.report.html.markup import legend, moment_link, text
from allocsim.report.layout import plural
from allocsim.report.top import moment_text
from allocsim.simulation import DeviceRun, Setting
from allocsim.units import format_size

_SHELLS = {
    "powershell": "PowerShell",
    "cmd": "Windows command prompt",
    "python": "Python, before torch is imported",
    "call": "Python, once torch is imported",
}
_NOTHING = "<p>Nothing was allocated.</p>\n"
_UNASKED = "not looked for; --what-if replays other settings."


def labelled(label: str, *sentences: str) -> str:
    """Return the HTML of a paragraph for each sentence, with a label such as "Warning"."""
    return "".join(
        f'<p class="verdict"><strong>{label}:</strong> {text(each)}</p>\n' for each in sentences
    )


def device_tabs(pictures: Sequence[Picture]) -> str:
    """Return the HTML of a tab for each of several devices; the first with an error is selected."""
    if len(pictures) == 1:
        return ""
    chosen = next((each for each in pictures if each.device_run.ooms), pictures[0])
    tabs = "".join(_tab(each.device_run, is_chosen=each is chosen) for each in pictures)
    return f'<div class="tabs js" role="tablist" aria-label="Devices">{tabs}</div>\n'


def _tab(device_run: DeviceRun, *, is_chosen: bool) -> str:
    failed = f", {plural(len(device_run.ooms), 'error')}" if device_run.ooms else ""
    peak = format_size(device_run.peak_reserved_bytes)
    return (
        f'<button type="button" role="tab" id="tab-{device_run.device}" aria-controls="main" '
        f'data-tab="{device_run.device}" aria-selected="{str(is_chosen).lower()}">'
        f"Device {device_run.device} <small>{peak}{failed}</small></button>"
    )


def to_paste(explanations: Sequence[DeviceExplanation]) -> str:
    """Return the HTML of the setting to paste, with a copy button, or why there is no setting."""
    if not explanations:
        return labelled("To paste", _UNASKED)
    found = explanations[0].recommendation
    if found.best is None:
        why = "" if found.why_not is None else f": {found.why_not}"
        return labelled("To paste", f"nothing{why}.")
    first, *notes = paste_notes(found, explanations)
    lines = paste_lines(found.best.setting)
    return (
        f'<p class="verdict paste"><strong>To paste:</strong> {_copied(lines["bash"])}</p>\n'
        f'<p class="proof">{text(first)} <span class="note">{text(" ".join(notes))}</span></p>\n'
        f"{_other_shells(found.best.setting)}"
    )


def _copied(line: str) -> str:
    return (
        f'<code>{text(line)}</code> <button type="button" class="js copy" '
        f'data-copy="{text(line)}">Copy</button>'
    )


def _other_shells(setting: Setting) -> str:
    items = "".join(
        f"<div><dt>{text(_SHELLS[shell])}</dt><dd>{_copied(line)}</dd></div>\n"
        for shell, line in paste_lines(setting).items()
        if shell in _SHELLS
    )
    return f"<details><summary>For other shells</summary><dl>{items}</dl></details>\n"


_MOST_ROWS = 2000
_FIGURES = ("size", "share", "blocks", "largest")


def owners_tables(tops: Sequence[Top]) -> str:
    """Return the HTML of a table for each kind of owner; with scripts, one is shown at a time."""
    top = tops[0]
    more, link = "", ""
    if top.at.requested_bytes is not None:
        more = f"; {format_size(top.at.requested_bytes)} more were requested"
    if top.at.entry is not None:
        link = f" {moment_link(top.at.entry, 'Show this moment', is_button=True)}"
    heading = _heading(top, more, link)
    if not top.rows:
        return heading + _NOTHING
    choices = "".join(f'<option value="{each.by}">{each.by}</option>' for each in tops)
    return (
        f'<div class="owners">{heading}'
        f'<div class="tools js"><label>By <select class="owners-by">{choices}</select></label>\n'
        '<label>Search <input class="owners-find" type="search"></label>\n'
        '<span class="owners-text" role="status" aria-live="polite"></span></div>\n'
        f"{''.join(map(_table, tops))}</div>\n"
    )


def _heading(top: Top, more: str = "", link: str = "") -> str:
    held = f"{format_size(top.allocated_bytes)} in {plural(top.blocks, 'block')}"
    heading = f"<p>{text(f'{held}, {moment_text(top.at)}{more}.')}{link}</p>\n"
    notes = "".join(f'<p class="note">{text(note)}</p>\n' for note in top.notes)
    return heading + notes


def _table(top: Top) -> str:
    is_by_category = top.by == "category"
    heads = (top.by, *_FIGURES, "where most of it is" if is_by_category else "category")
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in heads)
    rows = "\n".join(_row(row, top) for row in top.rows[:_MOST_ROWS])
    return (
        f'<div class="scroll tall" tabindex="0" role="region" data-by="{top.by}" '
        f'aria-label="Allocated memory by {top.by}"><table class="words">'
        f"<caption>{text(_caption(top))}</caption><thead><tr>{head}</tr></thead>\n"
        f"<tbody>{rows}</tbody></table></div>\n"
    )


def _caption(top: Top) -> str:
    hidden = top.rows[_MOST_ROWS:]
    if not hidden:
        return f"Allocated memory by {top.by}"
    held = format_size(sum(row.bytes for row in hidden))
    return (
        f"Allocated memory by {top.by}, the {_MOST_ROWS:,} largest of "
        f"{len(top.rows):,}; the others hold {held}"
    )


def _row(row: TopRow, top: Top) -> str:
    share = f"{row.bytes / max(top.allocated_bytes, 1):.1%}"
    cells = (
        (row.bytes, format_size(row.bytes)),
        (row.bytes, share),
        (row.blocks, f"{row.blocks:,}"),
        (row.largest_bytes, format_size(row.largest_bytes)),
    )
    figures = "".join(f'<td data-n="{value}">{text(shown)}</td>' for value, shown in cells)
    last = row.where if top.by == "category" else row.category
    return f'<tr><th scope="row">{text(row.owner)}</th>{figures}<td>{text(last)}</td></tr>'


_LEAST_SHARE = 1 / 4000
"""Smallest share of the memory for which a frame has its own box; smaller ones are in "other".

If the user zooms in, a box of this share becomes wide enough for the mouse pointer.
"""
_ROW = 20
"""Height of a row, in pixels."""
_MIXED = "x"
_LABEL = (
    "Flame graph, the outermost frames above. Arrow keys move from frame to frame, Enter zooms in, "
    "Escape shows the whole graph."
)


def flame_panel(top: Top, name: str = "flame") -> str:
    """Return the HTML of the flame graph of `top`; `name` is the prefix of its HTML ids."""
    flame = flame_of(top, least_share=_LEAST_SHARE)
    if not flame.boxes:
        return _heading(top) + _NOTHING
    boxes = "\n".join(_svg_of_frame(box, flame) for box in flame.boxes)
    return (
        f"{_heading(top)}{_legend(flame, top)}"
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


def _colour_class(category: str) -> str:
    return f"c{CATEGORIES.index(category) if category else _MIXED}"


def _legend(flame: FlameGraph, top: Top) -> str:
    drawn = {box.category for box in flame.boxes}
    items = [
        (f"{each} {format_size(top.categories[each])}", f"--category-{CATEGORIES.index(each)}")
        for each in flame.categories
        if each in drawn
    ]
    return legend([*items, *([("several categories", "--free")] if "" in drawn else [])])


def _svg_of_frame(box: FlameBox, flame: FlameGraph) -> str:
    # A nested `svg` element clips the name.
    total = flame.bytes
    name = f"other ({plural(box.folded, 'stack')})" if box.folded else box.name
    size = f"{format_size(box.bytes)}, {box.bytes / total:.1%}"
    of = f", {box.category}" if box.category else ""
    label = f"{name}: {size}, {box.blocks:,} {'block' if box.blocks == 1 else 'blocks'}{of}"
    file = f" ({box.file})" if "/" in box.file or "\\" in box.file else ""
    return (
        f'<svg class="{_colour_class(box.category)}" x="{box.start / total:.5%}" '
        f'y="{box.depth * _ROW}" width="{box.bytes / total:.5%}" height="{_ROW - 1}" '
        f'data-depth="{box.depth}" data-start="{box.start}" data-bytes="{box.bytes}" '
        f'data-name="{text(name + file)}">'
        f"<title>{text(label + file)}</title>"
        f'<rect width="100%" height="100%"/><text x="4" y="14">{text(name)} '
        f"{format_size(box.bytes)}</text></svg>"
    )
