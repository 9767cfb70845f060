"""Tables of memory owners (lines of code or categories) that can be sorted and searched.

All rows are in the HTML, largest first; the script (owners.js) only sorts and hides them.
"""

from __future__ import annotations

from collections.abc import Sequence

from allocsim.analysis.top import Top, TopRow
from allocsim.ownership import Moment
from allocsim.report.html.markup import moment_link, text
from allocsim.report.layout import number, plural
from allocsim.report.top import moment_text
from allocsim.units import format_size

_MOST_ROWS = 2000
_FIGURES = ("size", "share", "blocks", "largest")


def owners_tables(tops: Sequence[Top]) -> str:
    """Return the HTML of a table for each kind of owner, e.g. by line and by category.

    With scripts, one table is shown at a time.
    """
    top = tops[0]
    held = f"{format_size(top.allocated_bytes)} in {plural(top.blocks, 'block')}"
    more = ""
    if top.at.requested_bytes is not None:
        more = f"; {format_size(top.at.requested_bytes)} more were requested"
    heading = f"<p>{text(f'{held}, {moment_text(top.at)}{more}.')}{_shown(top.at)}</p>\n"
    notes = "".join(f'<p class="note">{text(note)}</p>\n' for note in top.notes)
    if not top.rows:
        return f"{heading}{notes}<p>Nothing was allocated.</p>\n"
    choices = "".join(f'<option value="{each.by}">{each.by}</option>' for each in tops)
    return (
        f'<div class="owners">{heading}{notes}'
        f'<div class="tools js"><label>By <select class="owners-by">{choices}</select></label>\n'
        '<label>Search <input class="owners-find" type="search"></label>\n'
        '<span class="owners-text" role="status" aria-live="polite"></span></div>\n'
        f"{''.join(map(_table, tops))}</div>\n"
    )


def _shown(at: Moment) -> str:
    return (
        "" if at.entry is None else f" {moment_link(at.entry, 'Show this moment', is_button=True)}"
    )


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
        f"Allocated memory by {top.by}, the {number(_MOST_ROWS)} largest of "
        f"{number(len(top.rows))}; the others hold {held}"
    )


def _row(row: TopRow, top: Top) -> str:
    share = f"{row.bytes / max(top.allocated_bytes, 1):.1%}"
    cells = (
        (row.bytes, format_size(row.bytes)),
        (row.bytes, share),
        (row.blocks, number(row.blocks)),
        (row.largest_bytes, format_size(row.largest_bytes)),
    )
    figures = "".join(f'<td data-n="{value}">{text(shown)}</td>' for value, shown in cells)
    last = row.where if top.by == "category" else row.category
    return f'<tr><th scope="row">{text(row.owner)}</th>{figures}<td>{text(last)}</td></tr>'
