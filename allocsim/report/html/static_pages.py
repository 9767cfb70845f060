"""Pages without scripts: differences between two runs, and the ranks of a distributed job.

All curves of a page have one scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from string import Template
from typing import TYPE_CHECKING

from allocsim.metrics import Outline
from allocsim.report.compare import COUNTS, PARTS
from allocsim.report.html.markup import (
    CURVES,
    definition_list,
    legend,
    page_part,
    staircase,
    stylesheet,
    table,
    text,
)
from allocsim.report.layout import plural, with_status
from allocsim.units import format_change, format_size

if TYPE_CHECKING:
    from allocsim.analysis.compare import Change, Comparison, Side
    from allocsim.analysis.ranks import RankRun, Ranks


_WIDE, _SMALL = (900, 180), (220, 90)
"""(Width, height) of a memory curve in pixels: on a page of two runs, and on a page of ranks."""
_BAR_WIDTH, _BAR_HEIGHT = 240, 14


def static_page(title: str, verdict: Iterable[str], sections: Iterable[tuple[str, str]]) -> str:
    """Return a page without scripts: sentences at the top, then sections of heading and HTML."""
    return Template(page_part("static.html")).substitute(
        title=text(title),
        verdict="".join(f'<p class="verdict">{text(line)}</p>\n' for line in verdict),
        sections="".join(
            f"<section>\n<h2>{text(name)}</h2>\n{content}</section>\n" for name, content in sections
        ),
        style=stylesheet("page.css"),
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Common scale of all curves of a page: `top` bytes high and `entries` history entries wide."""

    top: int
    entries: int

    def note(self, what: str) -> str:
        """Return the HTML of a legend of the curves' colours, and of a sentence on their scale.

        what: first word of the sentence, such as "Both" if the page has two curves.
        """
        size, entries = format_size(self.top), f"{self.entries:,}"
        note = f"{what} from 0 to {size} upwards and over {entries} entries."
        shown = legend((name, f"--{name}") for name in CURVES)
        return f'{shown}<p class="note">{text(note)}</p>\n'

    def figure(self, outline: Outline, size: tuple[int, int], caption: str, kind: str = "") -> str:
        """Return the HTML of a figure with the curves of reserved and allocated memory.

        size: width and height in pixels.
        kind: CSS class of the figure; "" for none.
        """
        width, height = size
        wide = width * outline.entries / max(self.entries, 1)
        scale = (height - 2) / max(self.top, 1)
        lines = "".join(
            f'<polyline points="{staircase(getattr(outline, name), wide, height - 1, scale)}" '
            f'fill="none" stroke="var(--{name})"/>'
            for name in CURVES
        )
        of_kind = f' class="{kind}"' if kind else ""
        return (
            f'<figure{of_kind}><svg class="outline" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" aria-hidden="true">{lines}</svg>'
            f"<figcaption>{text(caption)}</figcaption></figure>\n"
        )


def scale_of(outlines: Sequence[Outline]) -> Scale:
    top = max(max(outline.reserved) for outline in outlines)
    return Scale(top, max(outline.entries for outline in outlines))


def compare_page(found: Comparison) -> str:
    """Return the HTML page with the differences between two runs; it needs no network."""
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
                [text(what), text(f"{one:,}"), text(f"{other:,}"), text(f"{other - one:+,}")]
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
    return scale.note("Both") + "".join(
        scale.figure(outline, _WIDE, f"{name}: {plural(outline.entries, 'entry', 'entries')}")
        for name, outline in drawn
    )


def _changes(found: Comparison) -> str:
    changed = [each for each in found.changes if each.bytes]
    if not changed:
        return "<p>Every owner holds the same in both.</p>\n"
    most = max(abs(each.bytes) for each in changed)
    heads = ("change", "", "requested", "rounding", "A", "B", "blocks", found.by)
    same = len(found.changes) - len(changed)
    more = f"; {same:,} that hold the same are left out" if same else ""
    return table(
        f"They add up to {format_change(found.allocated_change)}{more}",
        heads,
        [_row(each, most) for each in changed],
        ends_in_words=True,
    )


def _row(each: Change, most: int) -> list[str]:
    was = f" (was {each.was})" if each.was != each.owner else ""
    blocks = f"{each.a_blocks:,} to {each.b_blocks:,}"
    return [
        text(format_change(each.bytes)),
        _bar(each.bytes, most),
        *map(text, (format_change(each.requested), format_change(each.rounding))),
        *map(text, (format_size(each.a_bytes), format_size(each.b_bytes), blocks)),
        text(with_status(each.status, f"{each.owner}{was}")),
    ]


def _bar(change: int, most: int) -> str:
    half = _BAR_WIDTH / 2
    wide = abs(change) / most * half
    at, paint = (half, "--alarm") if change > 0 else (half - wide, "--ideal")
    return (
        f'<svg width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}" aria-hidden="true">'
        f'<rect x="{at:.1f}" width="{wide:.1f}" height="100%" fill="var({paint})"/>'
        f'<rect x="{half:.1f}" width="1" height="100%" fill="var(--soft)"/></svg>'
    )


_HEADS = ("rank", "reserved", "allocated", "unused", "retries", "OOMs")


def ranks_page(found: Ranks) -> str:
    """Return the HTML page that compares the ranks of a distributed job; it needs no network."""
    return static_page(
        f"{plural(len(found.runs), 'rank')}",
        [f"{found.headline()}.", *_conf(found)],
        [
            ("Imbalance", _apart(found)),
            ("Memory over each run", _rank_curves(found)),
            ("All ranks", _rows(found)),
            *_refused(found),
        ],
    )


def _conf(found: Ranks) -> Iterator[str]:
    if found.conf is not None:
        yield f"Replayed under {found.conf or 'the defaults'}."
    yield from (f"{note}." for note in found.notes)


def _apart(found: Ranks) -> str:
    low, high = found.least, found.decides
    pairs = [
        ("Most reserved", f"{format_size(high.reserved_bytes)}, rank {high.rank}"),
        ("Median", format_size(found.median_bytes)),
        ("Least reserved", f"{format_size(low.reserved_bytes)}, rank {low.rank}"),
        ("Imbalance of reserved memory", f"{found.imbalance:.3f} times the mean"),
        ("Imbalance of allocated memory", f"{found.allocated_imbalance:.3f} times the mean"),
    ]
    if found.smallest_device is not None:
        pairs.append(("Smallest device for all", format_size(found.smallest_device)))
    return definition_list(pairs)


def _rank_curves(found: Ranks) -> str:
    drawn = [(run, run.outline) for run in found.runs if run.outline is not None]
    if not drawn:
        return "<p>The files hold states only, and no history to draw.</p>\n"
    scale = scale_of([outline for _, outline in drawn])
    pictures = "".join(
        scale.figure(outline, _SMALL, _caption(run), "decides" if run is found.decides else "")
        for run, outline in drawn
    )
    return f'{scale.note("Each")}<div class="ranks">\n{pictures}</div>\n'


def _caption(run: RankRun) -> str:
    more = f", {plural(run.ooms, 'out-of-memory error')}" if run.ooms else ""
    return f"rank {run.rank}: {format_size(run.reserved_bytes)}{more}"


def _rows(found: Ranks) -> str:
    has_smallest = any(run.smallest_device is not None for run in found.runs)
    rows = [
        [
            text(run.rank),
            *map(text, map(format_size, (run.reserved_bytes, run.allocated_bytes))),
            text(format_size(run.unused_bytes)),
            *(text("" if count is None else f"{count:,}") for count in (run.retries, run.ooms)),
            *([text(_smallest(run))] if has_smallest else []),
            text(run.path),
        ]
        for run in found.runs
    ]
    heads = (*_HEADS, *(["smallest device"] if has_smallest else []), "file")
    return table("By rank, at their peaks", heads, rows, ends_in_words=True)


def _smallest(run: RankRun) -> str:
    return "" if run.smallest_device is None else format_size(run.smallest_device)


def _refused(found: Ranks) -> Iterator[tuple[str, str]]:
    if found.refused:
        rows = [[text(each.path), text(each.error)] for each in found.refused]
        yield (
            "Not read",
            table("Files without an answer", ("file", "why"), rows, ends_in_words=True),
        )
