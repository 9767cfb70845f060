"""Page of the differences between two runs: memory curves, and lines of code that changed.

Both curves have one scale.  The page has a row for every line of code; the rows add up exactly to
the difference in allocated memory.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from allocsim.report.compare import COUNTS, PARTS
from allocsim.report.html.fallback import scale_of, static_page
from allocsim.report.html.markup import table, text
from allocsim.report.layout import number, plural, with_status
from allocsim.units import format_change, format_size

if TYPE_CHECKING:
    from allocsim.analysis.compare import Change, Comparison, Side

_SIZE = (900, 180)
_BAR_WIDTH, _BAR_HEIGHT = 240, 14


def compare_page(found: Comparison) -> str:
    """Return the page as HTML that opens offline."""
    a, b = found.a, found.b
    verdict = [
        f"Reserved at the peak: {_moved(a.reserved.reserved, b.reserved.reserved)}.",
        f"Allocated, where they are compared: {_moved(a.allocated_bytes, b.allocated_bytes)}.",
        *(f"{note}." for note in dict.fromkeys([*a.notes, *b.notes])),
    ]
    sections = [
        ("The two", _sides(a, b)),
        ("Memory over each run", _curves(a, b)),
        (f"Who holds more or less, by {found.by}", _changes(found)),
    ]
    return static_page("What differs between A and B", verdict, sections)


def _moved(a: int, b: int) -> str:
    return f"{format_size(a)} in A, {format_size(b)} in B: {format_change(b - a)}"


def _sides(a: Side, b: Side) -> str:
    rows = [
        [text("recording"), text(a.path), text(b.path), ""],
        [text("settings"), text(a.conf or "none"), text(b.conf or "none"), ""],
    ]
    first, second = asdict(a.reserved), asdict(b.reserved)
    rows += [_sizes(what, first[name], second[name]) for name, what in PARTS.items()]
    rows.append(_sizes("reserved at the peak", a.reserved.reserved, b.reserved.reserved))
    for name, what in COUNTS.items():
        one, other = getattr(a, name), getattr(b, name)
        if one is not None and other is not None:
            rows.append(
                [text(what), text(number(one)), text(number(other)), text(f"{other - one:+,}")]
            )
    return table("What their peaks are made of", ("", "A", "B", "change"), rows)


def _sizes(what: str, a: int, b: int) -> list[str]:
    return [text(what), *map(text, (format_size(a), format_size(b), format_change(b - a)))]


def _curves(a: Side, b: Side) -> str:
    drawn = [
        (name, side.outline) for name, side in (("A", a), ("B", b)) if side.outline is not None
    ]
    if not drawn:
        return "<p>Both hold a state only, and no history to draw.</p>\n"
    scale = scale_of([outline for _, outline in drawn])
    pictures = "".join(
        f"<figure>{scale.curve(outline, _SIZE)}"
        f"<figcaption>{name}: {plural(outline.entries, 'entry', 'entries')}</figcaption></figure>\n"
        for name, outline in drawn
    )
    return f"{scale.note('Both')}{pictures}"


def _changes(found: Comparison) -> str:
    changed = [each for each in found.changes if each.bytes]
    if not changed:
        return "<p>Every owner holds the same in both.</p>\n"
    most = max(abs(each.bytes) for each in changed)
    heads = ("change", "", "requested", "rounding", "A", "B", "blocks", found.by)
    same = len(found.changes) - len(changed)
    more = f"; {number(same)} that hold the same are left out" if same else ""
    return table(
        f"They add up to {format_change(found.allocated_change)}{more}",
        heads,
        [_row(each, most) for each in changed],
        ends_in_words=True,
    )


def _row(each: Change, most: int) -> list[str]:
    was = f" (was {each.was})" if each.was != each.owner else ""
    blocks = f"{number(each.a_blocks)} to {number(each.b_blocks)}"
    return [
        text(format_change(each.bytes)),
        _bar(each.bytes, most),
        *map(text, (format_change(each.requested), format_change(each.rounding))),
        *map(text, (format_size(each.a_bytes), format_size(each.b_bytes), blocks)),
        text(with_status(each.status, f"{each.owner}{was}")),
    ]


def _bar(change: int, most: int) -> str:
    """Return the SVG of a bar: right of the middle for an increase, left of it for a decrease.

    change: difference in bytes.
    most: bytes of the longest bar.
    """
    half = _BAR_WIDTH / 2
    wide = abs(change) / most * half
    at, paint = (half, "--alarm") if change > 0 else (half - wide, "--ideal")
    return (
        f'<svg width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}" aria-hidden="true">'
        f'<rect x="{at:.1f}" width="{wide:.1f}" height="100%" fill="var({paint})"/>'
        f'<rect x="{half:.1f}" width="1" height="100%" fill="var(--soft)"/></svg>'
    )
