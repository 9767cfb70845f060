"""SVG of reserved and allocated memory over the whole run, for readers without scripts.

If a run has more than `_STRETCHES` entries, each point is the maximum of several entries.
"""

from __future__ import annotations

from collections.abc import Iterator

from allocsim.analysis.picture import Picture
from allocsim.analysis.top import Course
from allocsim.metrics import Extremes, extremes_of
from allocsim.report.html.markup import legend
from allocsim.report.layout import number
from allocsim.units import format_size

__all__ = ["still_curve"]

_STRETCHES = 300
_WIDTH, _HEIGHT = 1000, 240
"""Size in image units; the image is scaled to the width of the page."""
_MOST_BANDS = 1000
_SERIES = ("reserved", "allocated")


def still_curve(picture: Picture, course: Course | None) -> str:
    """Return the HTML of the curve; `course` has the phases to draw in the background."""
    curve, n = picture.curve, len(picture.curve)
    step = max(1, -(-n // _STRETCHES))
    top = max(int(curve.reserved.max(initial=0)), 1)
    lines = "".join(
        _line(extremes_of(getattr(curve, name), step), top, f"--{name}") for name in _SERIES
    )
    ends = "".join(
        f'<line x1="{oom.entry * _WIDTH / n:.1f}" x2="{oom.entry * _WIDTH / n:.1f}" y1="0" '
        f'y2="{_HEIGHT}" stroke="var(--alarm)" stroke-dasharray="6 4"/>'
        for oom in picture.device_run.ooms[-_STRETCHES:]
    )
    items = [(name, f"--{name}") for name in _SERIES]
    bands = "" if course is None else "".join(_bands(course, n))
    if course is not None and bands:
        kinds = sorted({int(kind) for kind in course.phase} - {0})
        items += [(course.phases[kind], f"--phase-{kind}") for kind in kinds]
    of_each = f", the highest of every {number(step)}" if step > 1 else ""
    return (
        f'<div class="still">{legend(items)}'
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true">{bands}{lines}{ends}</svg>\n'
        f'<p class="note">0 to {format_size(top)} upwards; entries 0 to {number(n)} from left to '
        f"right{of_each}. The tables below hold the numbers.</p></div>\n"
    )


def _line(extremes: Extremes, top: int, paint: str) -> str:
    x, y = _WIDTH / len(extremes.high), _HEIGHT / top
    points = " ".join(
        f"{i * x:.1f},{_HEIGHT - value * y:.1f} {(i + 1) * x:.1f},{_HEIGHT - value * y:.1f}"
        for i, value in enumerate(extremes.high.tolist())
    )
    return f'<polyline points="{points}" fill="none" stroke="var({paint})" stroke-width="1.5"/>'


def _bands(course: Course, n: int) -> Iterator[str]:
    """Yield the SVG of a band for each phase; nothing for too many phases to distinguish.

    n: number of entries.
    """
    starts = [*course.phase_starts.tolist(), n]
    if len(starts) > _MOST_BANDS:
        return
    for kind, start, end in zip(course.phase.tolist(), starts, starts[1:], strict=False):
        if kind:
            yield (
                f'<rect x="{start * _WIDTH / n:.2f}" width="{(end - start) * _WIDTH / n:.2f}" '
                f'height="100%" fill="var(--phase-{kind})" opacity="0.25"/>'
            )
