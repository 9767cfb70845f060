"""Page of all ranks of a distributed job: a memory curve of each rank, and a table.

All curves have one scale.  Files that could not be read are listed too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from allocsim.report.html.fallback import scale_of, static_page
from allocsim.report.html.markup import definitions, table, text
from allocsim.report.layout import number, plural
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.ranks import RankRun, Ranks

_SIZE = (220, 90)
_HEADS = ("rank", "reserved", "allocated", "unused", "retries", "OOMs", "smallest device", "file")


def ranks_page(found: Ranks) -> str:
    """Return the page as HTML that opens offline."""
    return static_page(
        f"{plural(len(found.runs), 'rank')}",
        [f"{found.headline()}.", *_conf(found)],
        [
            ("Imbalance", _apart(found)),
            ("Memory over each run", _curves(found)),
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
    return definitions(pairs)


def _curves(found: Ranks) -> str:
    drawn = [(run, run.outline) for run in found.runs if run.outline is not None]
    if not drawn:
        return "<p>The files hold states only, and no history to draw.</p>\n"
    scale = scale_of([outline for _, outline in drawn])
    pictures = "".join(
        f"<figure{_deciding(run, found)}>{scale.curve(outline, _SIZE)}"
        f"<figcaption>{text(_caption(run))}</figcaption></figure>\n"
        for run, outline in drawn
    )
    return f'{scale.note("Each")}<div class="ranks">\n{pictures}</div>\n'


def _deciding(run: RankRun, found: Ranks) -> str:
    return ' class="decides"' if run is found.decides else ""


def _caption(run: RankRun) -> str:
    more = f", {plural(run.ooms, 'out-of-memory error')}" if run.ooms else ""
    return f"rank {run.rank}: {format_size(run.reserved_bytes)}{more}"


def _rows(found: Ranks) -> str:
    rows = [
        [
            text(run.rank),
            *map(text, map(format_size, (run.reserved_bytes, run.allocated_bytes))),
            text(format_size(run.unused_bytes)),
            *(text("" if count is None else number(count)) for count in (run.retries, run.ooms)),
            text("" if run.smallest_device is None else format_size(run.smallest_device)),
            text(run.path),
        ]
        for run in found.runs
    ]
    return table("By rank, at their peaks", _HEADS, rows, ends_in_words=True)


def _refused(found: Ranks) -> Iterator[tuple[str, str]]:
    if found.refused:
        rows = [[text(each.path), text(each.error)] for each in found.refused]
        yield (
            "Not read",
            table("Files without an answer", ("file", "why"), rows, ends_in_words=True),
        )
