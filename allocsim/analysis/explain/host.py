"""Reasons for the growth of pinned host memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from allocsim.host import Growth, GrowthCause, HostCourse, follow
from allocsim.ownership import Whose, is_python
from allocsim.recording import Trace
from allocsim.units import format_size

_ADVICE = {
    GrowthCause.WAITING: (
        "copies were slower than the frees: synchronize the stream before the next batch, or "
        "keep fewer batches in flight"
    ),
    GrowthCause.IN_USE: (
        "the program holds more pinned blocks at once: reuse buffers, or lower prefetch_factor "
        "and num_workers of the DataLoader"
    ),
    GrowthCause.TOO_SMALL: (
        "unrounded sizes are rarely reused: raise pinned_max_round_threshold_mb"
    ),
    GrowthCause.FIRST: "sizes are rounded to a power of two: pad batches to fewer different sizes",
}
_MUCH = 0.25
"""Least share for an advice: of a cause in the new blocks, of cached memory in the peak."""


@dataclass(frozen=True, slots=True)
class HostLine:
    """Line of the program that requested new pinned memory."""

    line: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class HostExplanation:
    """Growth of the pinned memory in a recording.

    causes: bytes of new blocks by cause, most first.
    lines: lines whose requests obtained new blocks, most bytes first.
    sizes: bytes of new blocks by size of the block, most bytes first.
    advice: sentences, most useful first.
    """

    path: str
    course: HostCourse
    causes: dict[GrowthCause, int]
    lines: tuple[HostLine, ...]
    sizes: dict[int, int]
    advice: tuple[str, ...]


def explain_host(path: str, trace: Trace) -> HostExplanation:
    """Return why the pinned memory in the trace of `load_host` grew."""
    course = follow(trace)
    causes: Counter[GrowthCause] = Counter()
    sizes: Counter[int] = Counter()
    for growth in course.growths:
        causes[growth.cause] += growth.size
        sizes[growth.size] += growth.size
    ordered = dict(causes.most_common())
    return HostExplanation(
        path=path,
        course=course,
        causes=ordered,
        lines=_lines(trace, course.growths),
        sizes=dict(sizes.most_common()),
        advice=tuple(_advice(course, ordered)),
    )


def _lines(trace: Trace, growths: tuple[Growth, ...]) -> tuple[HostLine, ...]:
    found: dict[str, list[int]] = {}
    for growth in growths:
        stack = tuple(filter(is_python, trace.frame_table.stack(growth.frames)))
        found.setdefault(Whose(stack).line(), []).append(growth.size)
    rows = [HostLine(line, sum(sizes), len(sizes)) for line, sizes in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.line)))


def _advice(course: HostCourse, causes: dict[GrowthCause, int]) -> list[str]:
    least = _MUCH * sum(causes.values())
    advice = [_ADVICE[cause] for cause, size in causes.items() if size >= least]
    if course.end.cached > _MUCH * course.peak.pinned:
        size = format_size(course.end.cached)
        advice.append(f"torch._C._host_emptyCache() would release the {size} that are cached")
    return advice
