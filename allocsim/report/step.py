"""Decision of the allocator on one request: rules, statistics, and segments drawn in characters.

Each character is an equal share of a segment's bytes and shows the state of most of them.  The
requested or freed block is drawn as `@`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from allocsim.analysis.step import Candidate, Decision, Moved
from allocsim.report.layout import WIDTH, fields, paragraph, parting_document, plural, row, rows
from allocsim.simulation import Parting
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import format_size

_BAR = WIDTH - 12
_KEYS = r"num_.*|.*\.all\.current"
_CHARACTERS = {ALLOCATED: "#", PENDING: "~", INACTIVE: "."}
_WORDS = {ALLOCATED: "allocated", PENDING: "pending", INACTIVE: "free"}
_LEGEND = "@ this block   # allocated   ~ pending   . free"
_SHOWN_SEGMENTS, _SHOWN_BLOCKS, _SHOWN_CANDIDATES = 3, 5, 3
HIDDEN = "-v: every statistic and free block; --json: the same for programs"
"""Hint below a text that was shortened to fit a screen: options that print more."""


def text(decision: Decision, title: str, *, is_screen: bool = False) -> str:
    """Return the text of `allocsim step` for one request.

    is_screen: True to leave out counts and most free blocks, so that the text fits a screen.
    """
    lines = [title, *_answer(decision)]
    for rule in decision.rules:
        lines += row(f"  {rule.name}", rule.text)
        if rule.name in ("best fit", "no fit", "refused"):
            lines += _candidates(decision.candidates, 0 if is_screen else _SHOWN_CANDIDATES)
    if decision.error is not None:
        lines += paragraph(decision.error, indent=4)
    keys = re.compile(r"num_(?:alloc_retries|ooms)|.*_bytes\.all\.current" if is_screen else _KEYS)
    lines += rows("  statistics", (_moved(m) for m in decision.moved if keys.fullmatch(m.key)))
    shown_segments = 1 if is_screen else _SHOWN_SEGMENTS
    return "\n".join([*lines, *_drawings(decision, shown_segments)]) + "\n"


def _answer(decision: Decision) -> list[str]:
    if decision.error is not None:
        return row("  answer", "out of memory")
    if decision.address is not None:
        return row("  answer", f"the block at {decision.address:#x}")
    return []


def _candidates(candidates: Sequence[Candidate], neighbours: int) -> list[str]:
    at = next((i for i, c in enumerate(candidates) if c.verdict == "taken"), len(candidates) - 1)
    first = max(at - neighbours, 0)
    last = min(at + 1 + neighbours, len(candidates))
    lines = [
        f"{'':16}{c.size:>16,} bytes at {c.address:#x}: {c.verdict}" for c in candidates[first:last]
    ]
    hidden = len(candidates) - (last - first)
    return [*lines, *(row("", f"(and {hidden:,} more)") if hidden else [])]


def _moved(moved: Moved) -> str:
    name = moved.key.removesuffix(".all.current")
    return f"{name:<21}{moved.before:>15,} ->{moved.after:>15,}"


# -- drawings ------------------------------------------------------------------------------


def _drawings(decision: Decision, shown_segments: int) -> list[str]:
    address = decision.address if decision.address is not None else decision.request.address
    before = {segment.address: segment for segment in decision.before}
    after = {segment.address: segment for segment in decision.after}
    shown = sorted({*before, *after}, key=lambda at: abs(at - (address or 0)))
    lines: list[str] = []
    for at in sorted(shown[:shown_segments]):
        lines += _pair(before.get(at), after.get(at), address)
    hidden = len(shown) - shown_segments
    if hidden > 0:
        lines += row("", f"({plural(hidden, 'more segment')} changed)")
    return [*lines, f"  {_LEGEND}"] if lines else []


def _pair(
    before: SegmentState | None, after: SegmentState | None, address: int | None
) -> list[str]:
    segment = after or before
    assert segment is not None
    lines = [f"  {_title(segment)}"]
    lines.append(f"  before [{_bar(before, address)}]" if before else "  before (not there yet)")
    lines.append(
        f"  after  [{_bar(after, address)}]" if after else "  after  (released to the driver)"
    )
    return [*lines, *(row("", _listed(after.blocks, {})) if after is not None else [])]


def _title(segment: SegmentState) -> str:
    kind = "small" if segment.is_small else "large"
    parts = [f"segment {segment.address:#x}: {format_size(segment.total_size)}", f"{kind} pool"]
    if segment.stream:
        parts.append(f"stream {segment.stream}")
    if segment.pool_id != DEFAULT_POOL:
        parts.append(f"private pool {segment.pool_id}")
    return ", ".join([*parts, *(["expandable"] if segment.is_expandable else [])])


def _bar(segment: SegmentState, address: int | None) -> str:
    shares: list[Counter[str]] = [Counter() for _ in range(_BAR)]
    own: list[int] = []
    for block in segment.blocks:
        start, end = block.address - segment.address, block.end - segment.address
        first = start * _BAR // segment.total_size
        last = (end - 1) * _BAR // segment.total_size
        for i in range(first, last + 1):
            low, high = i * segment.total_size // _BAR, (i + 1) * segment.total_size // _BAR
            shares[i][_CHARACTERS[block.state]] += min(end, high) - max(start, low)
        if address is not None and block.address <= address < block.end:
            own = list(range(first, last + 1)) if block.state != INACTIVE else []
    characters = [share.most_common(1)[0][0] for share in shares]
    for i in own:
        if characters[i] != "." or len(own) == 1 or shares[i]["#"] + shares[i]["~"]:
            characters[i] = "@"
    return "".join(characters)


def _listed(blocks: Sequence[BlockState], names: dict[int, str]) -> str:
    parts = [
        f"{names.get(block.address, '')}{format_size(block.size)} {_WORDS[block.state]}"
        for block in blocks[:_SHOWN_BLOCKS]
    ]
    hidden = len(blocks) - _SHOWN_BLOCKS
    if hidden > 0:
        parts.append(f"{hidden:,} more {'block' if hidden == 1 else 'blocks'}")
    return " | ".join(parts)


def segments_text(segments: Sequence[SegmentState], numbers: dict[int, int]) -> str:
    """Return a drawing of every segment, one character for an equal share of its bytes.

    numbers: dictionary from the address of a live block to a number, which is printed with it.
    """
    names = {address: f"{given}: " for address, given in numbers.items()}
    lines = []
    for segment in segments:
        lines += [f"  {_title(segment)}", f"         [{_bar(segment, None)}]"]
        lines += row("", _listed(segment.blocks, names))
    return "\n".join(lines or ["  nothing is reserved"]) + "\n"


def document(
    decision: Decision,
    entry: int | None = None,
    *,
    device: int | None = None,
    parting: Parting | None = None,
) -> dict[str, Any]:
    """Return the document of `allocsim step --json` for one request.

    entry, device: entry and device number of the request; None if it is not from a recording.
    parting: first difference between replay and recording; None if they are equal.
    """
    return {
        "entry": entry,
        "device": device,
        "notes": [] if parting is None else [str(parting)],
        "parting": parting_document(parting),
        "request": asdict(decision.request),
        "address": decision.address,
        "error": decision.error,
        "rules": [asdict(rule) for rule in decision.rules],
        "candidates": [asdict(candidate) for candidate in decision.candidates],
        "entries": [each._asdict() for each in decision.entries],
        "moved": {m.key: [m.before, m.after] for m in decision.moved},
        "before": [_segment_document(segment) for segment in decision.before],
        "after": [_segment_document(segment) for segment in decision.after],
    }


def _segment_document(segment: SegmentState) -> dict[str, Any]:
    return {
        **fields(segment, "address size=total_size stream is_small pool_id is_expandable"),
        "blocks": [fields(each, "address size requested_size state") for each in segment.blocks],
    }
