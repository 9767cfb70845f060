"""Owners of the memory at a moment, as text, as JSON and for flame graph viewers.

An owner is a line of code, a stack or a category, with the bytes of its blocks.
"""

from __future__ import annotations

from typing import Any

from allocsim._repr import printable
from allocsim.analysis.top import Holding, Top, TopRow
from allocsim.ownership import Moment
from allocsim.recording import HOST, Frame
from allocsim.report.answer import savings_document, savings_part
from allocsim.report.layout import WIDTH, and_more, clipped, fields, paragraph, plural
from allocsim.units import format_size

_ROWS = 12
_ROWS_WITH_LINES = 8
_FIGURES = "{:>11} {:>6} {:>7} {:>11}  "
_BELOW = 8
_LEAST_SHARE = 0.0005
"""Smallest share of allocated bytes of a listed category; less would be printed as 0.0%."""
_MUCH = 0.4
_LONG = {"category": "category, and line", "module": "category, and owner", "stack": "category"}
"""Heading of the last column of the table, for each kind of owner whose rows take two lines."""
_MOMENTS = {
    "peak": "at the peak of allocated memory",
    "oom": "at the out-of-memory error",
    "end": "at the end",
    "entry": "after",
}
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def text(top: Top, count: int | None = None, frames: int | None = None) -> str:
    """Return the text of `allocsim top`.

    count: rows to print; 0 for all rows, None for as many as fit one screen.
    frames: number of frames to print below each row, if the owners are stacks; None for no frames.
    """
    is_long = top.by in _LONG
    if count is None:
        count = _ROWS_WITH_LINES if is_long else _ROWS
    shown = top.rows[: count or None]
    named = _LONG.get(top.by, top.by)
    lines = [*_heading(top), "", _FIGURES.format("bytes", "share", "blocks", "largest") + named]
    for row in shown:
        beside, below = _name_and_detail(row, top.by)
        figures = _figures(top, row.bytes, row.blocks, row.largest_bytes)
        lines.append(figures + clipped(beside, WIDTH - len(figures)))
        parts = row.owner.split(" < ") if top.by == "stack" and frames else [below]
        lines += [" " * _BELOW + clipped(part, WIDTH - _BELOW) for part in parts if part]
    lines += _rest(top, len(shown))
    if top.by != "category" and top.rows:
        lines += ["", *_categories(top)]
    if top.by == "line" and top.rows and top.rows[0].bytes > _MUCH * top.allocated_bytes:
        lines.append("One line holds much of it; --by module shows the part of the model.")
    lines += savings_part(top.savings).lines
    for note in top.notes:
        lines += paragraph(f"note: {note}", 0)
    return "\n".join(lines) + "\n"


def _heading(top: Top) -> list[str]:
    what = f"{format_size(top.allocated_bytes)} in {plural(top.blocks, 'block')}"
    at = top.at
    device = "Pinned host memory" if top.device == HOST else f"Device {top.device}"
    heading = f"{device} {moment_text(at)}: {what}"
    if at.requested_bytes is not None:
        heading += f"; {format_size(at.requested_bytes)} more were requested"
    lines = paragraph(heading, 0)
    if top.pending_blocks:
        pending = f"{format_size(top.pending_bytes)} in {plural(top.pending_blocks, 'block')}"
        lines += paragraph(f"besides {pending}, freed and waiting for other streams", 0)
    return lines


def moment_text(at: Moment) -> str:
    """Describe a moment, e.g. "at the out-of-memory error (entry 26,059, step 7, backward)"."""
    if at.entry is None:
        return "as the snapshot was taken"
    where = f"entry {at.entry:,}"
    if at.step:
        where += f", step {at.step}"
    if at.phase:
        where += f", {at.phase}"
    return f"after {where}" if at.what == "entry" else f"{_MOMENTS[at.what]} ({where})"


def _name_and_detail(row: TopRow, by: str) -> tuple[str, str]:
    if by == "category":
        return row.owner, row.where
    if by in _LONG:
        return row.category, row.owner
    return row.owner.replace("backward (autograd) of", "backward of"), ""


def _figures(top: Top, size: int, blocks: int, largest: int) -> str:
    share = f"{size / max(top.allocated_bytes, 1):.1%}"
    return _FIGURES.format(format_size(size), share, f"{blocks:,}", format_size(largest))


def _rest(top: Top, shown: int) -> list[str]:
    rest = top.rows[shown:]
    if not rest:
        return []
    size, blocks = sum(row.bytes for row in rest), sum(row.blocks for row in rest)
    largest = max(row.largest_bytes for row in rest)
    return [f"{_figures(top, size, blocks, largest)}{and_more(len(rest))}"]


def _categories(top: Top) -> list[str]:
    shares = [
        f"{category} {size / max(top.allocated_bytes, 1):.1%}"
        for category, size in top.categories.items()
        if size >= top.allocated_bytes * _LEAST_SHARE
    ]
    return paragraph("By category: " + ", ".join(shares), 0)


def moment_document(at: Moment) -> dict[str, Any]:
    return {"entry": at.entry, "what": at.what, "step": at.step or None, "phase": at.phase or None}


def document(top: Top) -> dict[str, Any]:
    return {
        **fields(top, "path device"),
        "at": moment_document(top.at) | {"requested_bytes": top.at.requested_bytes},
        **fields(top, "by allocated_bytes blocks pending_bytes pending_blocks categories"),
        "rows": [
            {
                **fields(row, "owner category bytes blocks largest_bytes"),
                "share": row.bytes / max(top.allocated_bytes, 1),
                **fields(row, "where categories"),
                "reason": row.reason or None,
            }
            for row in top.rows
        ],
        "notes": list(top.notes),
        "savings": savings_document(top.savings),
    }


def collapsed_text(top: Top) -> str:
    """Return the memory as collapsed stacks, the input of flamegraph.pl: outermost frame first."""
    found: dict[str, int] = {}
    for holding in top.holdings:
        names = [_collapsed(name) for name, _ in _named_frames(holding, is_by_category=_is_by(top))]
        line = ";".join(names)
        found[line] = found.get(line, 0) + holding.bytes
    return "".join(f"{line} {size}\n" for line, size in found.items())


def _collapsed(name: str) -> str:
    return printable(name).replace(";", "\\x3b")


def speedscope_document(*tops: Top) -> dict[str, Any]:
    """Return a document for speedscope with a profile for each of `tops`; a sample is a stack."""
    frames: dict[tuple[str, Frame | None], int] = {}
    profiles = []
    for top in tops:
        samples, weights = [], []
        for holding in top.holdings:
            chain = _named_frames(holding, is_by_category=_is_by(top))
            samples.append([frames.setdefault(link, len(frames)) for link in chain])
            weights.append(holding.bytes)
        of = f"device {top.device} {moment_text(top.at)}: " if len(tops) > 1 else ""
        profiles.append(
            {
                "type": "sampled",
                "name": f"{of}allocated memory",
                "unit": "bytes",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        )
    of = f", device {tops[0].device} {moment_text(tops[0].at)}" if len(tops) == 1 else ""
    return {
        "$schema": _SCHEMA,
        "exporter": "allocsim",
        "name": f"{tops[0].path}{of}",
        "activeProfileIndex": 0,
        "shared": {
            "frames": [
                {"name": name}
                | ({} if frame is None else {"file": frame.filename, "line": frame.line})
                for name, frame in frames
            ]
        },
        "profiles": profiles,
    }


def _is_by(top: Top) -> bool:
    return top.by == "category"


def _named_frames(holding: Holding, *, is_by_category: bool) -> list[tuple[str, Frame | None]]:
    # Outermost first; a category has no frame.
    chain: list[tuple[str, Frame | None]] = [
        (f"{frame.name} ({frame.filename}:{frame.line})", frame)
        for frame in reversed(holding.frames)
    ]
    if holding.silent:
        chain.append((holding.silent, None))
    if is_by_category:
        chain.insert(0, (holding.category, None))
    return chain or [("no stack recorded", None)]
