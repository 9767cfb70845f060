"""Parts of a page that need no script: escaped text, tables, memory curves, strips of segments.

All text from a recording must pass through `text` or `json_text`.  A strip shows the segments of a
pool one after another, with the allocated share of each pixel.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import groupby

from allocsim._repr import printable
from allocsim.analysis.picture import Instant, Picture
from allocsim.analysis.top import Course
from allocsim.metrics import Extremes, extremes_of
from allocsim.report.packing import WIDTH, PackedPool, packed, pieces_of
from allocsim.state import ALLOCATED, INACTIVE, PENDING, SegmentState
from allocsim.units import format_size

CURVES = ("reserved", "allocated")
"""Names of the memory curves that pages without scripts show."""
_STRETCHES = 300
_WIDE, _HIGH = 1000, 240
"""Size of a curve in image units; the image is scaled to the width of the page."""
_SPARK = (220, 40)
"""Width and height of a sparkline, in pixels."""
_MOST_BANDS = 1000
_ROW, _ROW_GAP = 16, 3
_SHADES = 16
"""Number of distinct column heights; they are few, so that equal neighbours can be joined."""


def page_part(name: str) -> str:
    return (files("allocsim.report") / "html" / name).read_text(encoding="utf-8")


def stylesheet(*names: str) -> str:
    """Return the styles of all pages, followed by the files `names` in allocsim/report/html."""
    theme = page_part("theme.css")
    dark = theme.partition(':root[data-theme="dark"] ')[2].partition("}")[0]
    system = (
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme]) {dark}}} }}\n"
    )
    return theme + system + "".join(map(page_part, names))


def text(words: object) -> str:
    return html.escape(printable(str(words)))


def json_text(document: object) -> str:
    """Return `document` as JSON for a `<script>` element, with "<", ">" and "&" escaped."""
    plain = json.dumps(document, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], ends_in_words: bool = False
) -> str:
    """Return an HTML table; the first cell of each row is a header.

    rows: cells as HTML, already escaped by `text`.
    ends_in_words: align the last column to the left, since it holds text and not numbers.
    """
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>\n'
        for first, *rest in rows
    )
    kind = ' class="words"' if ends_in_words else ""
    return (
        f'<div class="scroll"><table{kind}><caption>{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def sizes_table(caption: str, sizes: Mapping[str, int], total: int) -> str:
    rows = [[text(name), text(format_size(size))] for name, size in sizes.items()]
    return table(caption, ("memory", "size"), [*rows, ["total", text(format_size(total))]])


def legend(items: Iterable[tuple[str, str]]) -> str:
    """Return the HTML of a legend.

    items: pairs (label, CSS variable of the colour).
    """
    shown = (
        f'<span><i style="color: var({paint})"></i>{text(name)}</span>' for name, paint in items
    )
    return f'<p class="legend">{" ".join(shown)}</p>\n'


def moment_link(entry: int, words: str, *, is_button: bool = False) -> str:
    """Return a link with the text `words`, which makes the charts show the moment after `entry`."""
    kind = ' class="go"' if is_button else ""
    return f'<a{kind} href="#entry={entry}" data-entry="{entry}">{text(words)}</a>'


def definition_list(pairs: Iterable[tuple[str, str]]) -> str:
    items = (f"<div><dt>{text(name)}</dt><dd>{text(what)}</dd></div>\n" for name, what in pairs)
    return f"<dl>{''.join(items)}</dl>\n"


def sparkline(extremes: Extremes, top: int, length: int) -> str:
    """Return inline SVG of a small curve, which shows the maximum of each range of entries.

    extremes: lowest and highest values in each range of entries.
    top: value at the upper edge of the image.
    length: number of ranges in the full width; equal for all curves of a table.
    """
    wide, high = _SPARK
    width = wide * len(extremes.high) / max(length, 1)
    points = staircase(extremes.high.tolist(), width, high - 1, (high - 2) / max(top, 1))
    area = f"0,{high} {points} {width:.1f},{high}"
    return (
        f'<svg class="spark" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'aria-hidden="true"><polygon points="{area}"/><polyline points="{points}"/></svg>'
    )


def staircase(values: Sequence[int], width: float, bottom: int, scale: float) -> str:
    """Return the points of an SVG polyline with one horizontal step for each value.

    bottom: y of the value 0; y grows downwards.
    scale: image units per unit of the values.
    """
    x = width / len(values)
    heights = enumerate(bottom - value * scale for value in values)
    return " ".join(f"{i * x:.1f},{y:.1f} {(i + 1) * x:.1f},{y:.1f}" for i, y in heights)


def still_curve(picture: Picture, course: Course | None) -> str:
    """Return the HTML of a run's memory curve, drawn without a script."""
    curve, n = picture.curve, len(picture.curve)
    step = max(1, -(-n // _STRETCHES))
    top = max(int(curve.reserved.max(initial=0)), 1)
    highs = {name: extremes_of(getattr(curve, name), step).high.tolist() for name in CURVES}
    lines = "".join(
        f'<polyline points="{staircase(high, _WIDE, _HIGH, _HIGH / top)}" '
        f'fill="none" stroke="var(--{name})" stroke-width="1.5"/>'
        for name, high in highs.items()
    )
    ends = "".join(
        f'<line x1="{oom.entry * _WIDE / n:.1f}" x2="{oom.entry * _WIDE / n:.1f}" y1="0" '
        f'y2="{_HIGH}" stroke="var(--alarm)" stroke-dasharray="6 4"/>'
        for oom in picture.device_run.ooms[-_STRETCHES:]
    )
    items = [(name, f"--{name}") for name in CURVES]
    bands = "" if course is None else "".join(_phase_bands(course, n))
    if course is not None and bands:
        kinds = sorted({int(kind) for kind in course.phase} - {0})
        items += [(course.phases[kind], f"--phase-{kind}") for kind in kinds]
    of_each = f", the highest of every {step:,}" if step > 1 else ""
    return (
        f'<div class="still">{legend(items)}'
        f'<svg class="curve" viewBox="0 0 {_WIDE} {_HIGH}" preserveAspectRatio="none" '
        f'aria-hidden="true">{bands}{lines}{ends}</svg>\n'
        f'<p class="note">0 to {format_size(top)} upwards; entries 0 to {n:,} from left to '
        f"right{of_each}. The tables below hold the numbers.</p></div>\n"
    )


def _phase_bands(course: Course, n: int) -> Iterator[str]:
    starts = [*course.phase_starts.tolist(), n]
    if len(starts) > _MOST_BANDS:
        return
    for kind, start, end in zip(course.phase.tolist(), starts, starts[1:], strict=False):
        if kind:
            yield (
                f'<rect x="{start * _WIDE / n:.2f}" width="{(end - start) * _WIDE / n:.2f}" '
                f'height="100%" fill="var(--phase-{kind})" opacity="0.25"/>'
            )


def state_legend(instant: Instant) -> str:
    states = (
        ("allocated", ALLOCATED, "--kind-0"),
        ("waiting", PENDING, "--kind-1"),
        ("free", INACTIVE, "--free"),
    )
    return legend(
        (f"{name} {format_size(instant.held(state))}", paint) for name, state, paint in states
    )


def packed_strip(instant: Instant) -> str:
    """Return HTML that shows each pool: name, bytes, and a strip with all its segments in a row."""
    return "".join(map(_pool, packed(instant)))


def _pool(pool: PackedPool) -> str:
    shapes: dict[str, list[str]] = {}
    for segment, (at, wide) in zip(pool.segments, pool.places, strict=True):
        for paint, shape in _shapes(segment, at, wide):
            shapes.setdefault(paint, []).append(shape)
    paths = "".join(
        f'<path d="{"".join(each)}" style="fill: var({paint})"/>' for paint, each in shapes.items()
    )
    return (
        f'<figure class="pool"><figcaption>{text(pool.text)}</figcaption>'
        f'<svg class="strip" viewBox="0 0 {WIDTH} {pool.rows * (_ROW + _ROW_GAP)}" '
        f'aria-hidden="true">{paths}</svg></figure>\n'
    )


def _shapes(segment: SegmentState, at: int, wide: int) -> Iterator[tuple[str, str]]:
    # Pairs of colour and path; `at` and `wide` are pixel columns of the strip.
    for row, first, last in pieces_of(at, at + wide):
        yield "--free", _box(first, row, last - first, 0, _SHADES)
    columns = zip(*(_shares(segment, state, wide) for state in (ALLOCATED, PENDING)), strict=True)
    start = at
    for (allocated, pending), equal in groupby(columns):
        end = start + len(list(equal))
        bottom = 0
        for paint, top in (
            ("--kind-0", allocated),
            ("--kind-1", min(allocated + pending, _SHADES)),
        ):
            if top > bottom:
                for row, first, last in pieces_of(start, end):
                    yield paint, _box(first, row, last - first, bottom, top)
            bottom = top
        start = end


def _box(x: int, row: int, wide: int, bottom: int, top: int) -> str:
    high = (top - bottom) * _ROW // _SHADES
    y = row * (_ROW + _ROW_GAP) + _ROW - top * _ROW // _SHADES
    return f"M{x} {y}h{wide}v{high}h-{wide}z"


def _shares(segment: SegmentState, state: str, wide: int) -> list[int]:
    share = [0.0] * wide
    scale = wide / segment.total_size
    for block in segment.blocks:
        if block.state != state:
            continue
        left = (block.address - segment.address) * scale
        right = left + block.size * scale
        for column in range(int(left), min(int(right) + 1, wide)):
            share[column] += max(min(right, column + 1) - max(left, column), 0.0)
    return [0 if each <= 0 else max(round(each * _SHADES), 1) for each in share]
