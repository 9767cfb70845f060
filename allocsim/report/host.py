"""Reasons why pinned host memory grew during a recording, as text and as JSON."""

from __future__ import annotations

from typing import Any

from allocsim.analysis.explain import HostExplanation
from allocsim.report.layout import WIDTH, and_more, clipped, fields, paragraph, plural
from allocsim.units import format_size

_ROWS = 4
_TOTALS = "entry in_use_bytes=in_use waiting_bytes=waiting cached_bytes=cached"


def text(answer: HostExplanation) -> str:
    course = answer.course
    grown = sum(growth.size for growth in course.growths)
    end, peak = course.end, course.peak
    lines = paragraph(
        f"Pinned host memory: {format_size(peak.pinned)} at the peak (entry "
        f"{max(peak.entry, 0):,}), {format_size(end.pinned)} at the end: "
        f"{format_size(end.in_use)} in use, {format_size(end.waiting)} freed and waiting for a "
        f"copy, {format_size(end.cached)} cached",
        0,
    )
    lines += paragraph(
        f"{plural(course.requests, 'request')}; {plural(len(course.growths), 'new block')} of "
        f"{format_size(grown)} from the driver, {format_size(course.released)} released",
        0,
    )
    lines += ["", "new blocks, because"]
    lines += [f"{format_size(size):>12}  {cause.value}" for cause, size in answer.causes.items()]
    lines += ["", "requested by"]
    for row in answer.lines[:_ROWS]:
        figures = f"{format_size(row.bytes):>12} {row.blocks:>6,}  "
        lines.append(figures + clipped(row.line, WIDTH - len(figures)))
    if rest := answer.lines[_ROWS:]:
        size = format_size(sum(row.bytes for row in rest))
        lines.append(f"{size:>12} {sum(row.blocks for row in rest):>6,}  {and_more(len(rest))}")
    lines.append("")
    for advice in answer.advice:
        lines += paragraph(f"- {advice}", 2)
    lines += paragraph(
        f"{course.agreed:,} of {course.checked:,} choices of a block that can be "
        "checked are those of the model",
        0,
    )
    return "\n".join(lines) + "\n"


def document(answer: HostExplanation) -> dict[str, Any]:
    course = answer.course
    return {
        "path": answer.path,
        "pinned_host_memory": {
            "start": fields(course.start, _TOTALS),
            "peak": fields(course.peak, _TOTALS),
            "end": fields(course.end, _TOTALS),
            **fields(course, "requests released_bytes=released choices_checked=checked"),
            "choices_equal": course.agreed,
            "causes": [
                {"cause": cause.name.lower().replace("_", " "), "bytes": size}
                for cause, size in answer.causes.items()
            ],
            "lines": [fields(row, "line bytes blocks") for row in answer.lines],
            "sizes": [{"size": size, "bytes": total} for size, total in answer.sizes.items()],
            "advice": list(answer.advice),
        },
    }
