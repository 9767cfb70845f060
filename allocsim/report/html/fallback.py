"""Charts of a report for readers without scripts: the memory curve, and strips of segments.

A strip shows the segments of a pool one after another, with the allocated share of each pixel.
Allocated memory is visible however small it is; strip.js draws the same strips. If a run has more
than `_STRETCHES` entries, each point of its curve is the maximum of several entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from allocsim.analysis.picture import Instant, Picture
from allocsim.analysis.top import Course
from allocsim.metrics import extremes_of
from allocsim.report.html.markup import legend, steps, text
from allocsim.report.packing import WIDTH, PackedPool, packed, pieces_of
from allocsim.state import ALLOCATED, INACTIVE, PENDING, SegmentState
from allocsim.units import format_size

SERIES = ("reserved", "allocated")
_STRETCHES = 300
_WIDTH, _HEIGHT = 1000, 240
"""Size of a curve in image units; the image is scaled to the width of the page."""
_MOST_BANDS = 1000
_ROW, _ROW_GAP = 16, 3
_SHADES = 16
"""Number of distinct column heights, so that equal neighbours can be joined."""
_COLOURS = (("--kind-0", ALLOCATED), ("--kind-1", PENDING))


def still_curve(picture: Picture, course: Course | None) -> str:
    """Return the HTML of a run's memory curve.

    course: steps and phases to draw in the background; None if unknown.
    """
    curve, n = picture.curve, len(picture.curve)
    step = max(1, -(-n // _STRETCHES))
    top = max(int(curve.reserved.max(initial=0)), 1)
    highs = {name: extremes_of(getattr(curve, name), step).high.tolist() for name in SERIES}
    lines = "".join(
        f'<polyline points="{steps(high, _WIDTH, _HEIGHT, _HEIGHT / top)}" '
        f'fill="none" stroke="var(--{name})" stroke-width="1.5"/>'
        for name, high in highs.items()
    )
    ends = "".join(
        f'<line x1="{oom.entry * _WIDTH / n:.1f}" x2="{oom.entry * _WIDTH / n:.1f}" y1="0" '
        f'y2="{_HEIGHT}" stroke="var(--alarm)" stroke-dasharray="6 4"/>'
        for oom in picture.device_run.ooms[-_STRETCHES:]
    )
    items = [(name, f"--{name}") for name in SERIES]
    bands = "" if course is None else "".join(_phase_bands(course, n))
    if course is not None and bands:
        kinds = sorted({int(kind) for kind in course.phase} - {0})
        items += [(course.phases[kind], f"--phase-{kind}") for kind in kinds]
    of_each = f", the highest of every {step:,}" if step > 1 else ""
    return (
        f'<div class="still">{legend(items)}'
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
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
                f'<rect x="{start * _WIDTH / n:.2f}" width="{(end - start) * _WIDTH / n:.2f}" '
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
    """Return the HTML of the segments of each pool, with the name and bytes of the pool."""
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


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Adjacent pixel columns of a segment that look the same.

    first, last: first pixel column, and the column after the last.
    tops: upper edges of the allocated and of the pending part, from 0 to `_SHADES`.
    """

    first: int
    last: int
    tops: tuple[int, int]


def _shapes(segment: SegmentState, at: int, wide: int) -> Iterator[tuple[str, str]]:
    for row, first, last in pieces_of(at, at + wide):
        yield "--free", _box(first, row, last - first, 0, _SHADES)
    for each in _stretches(segment, wide):
        bottom = 0
        for (paint, _), top in zip(_COLOURS, each.tops, strict=True):
            if top > bottom:
                for row, first, last in pieces_of(at + each.first, at + each.last):
                    yield paint, _box(first, row, last - first, bottom, top)
            bottom = top


def _box(x: int, row: int, wide: int, bottom: int, top: int) -> str:
    high = (top - bottom) * _ROW // _SHADES
    y = row * (_ROW + _ROW_GAP) + _ROW - top * _ROW // _SHADES
    return f"M{x} {y}h{wide}v{high}h-{wide}z"


def _stretches(segment: SegmentState, wide: int) -> Iterator[_Stretch]:
    tops = zip(
        _share_of_columns(segment, ALLOCATED, wide),
        _share_of_columns(segment, PENDING, wide),
        strict=True,
    )
    at = 0
    for (allocated, waiting), equal in groupby(tops):
        length = sum(1 for _ in equal)
        yield _Stretch(at, at + length, (allocated, min(allocated + waiting, _SHADES)))
        at += length


def _share_of_columns(segment: SegmentState, state: str, wide: int) -> list[int]:
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
