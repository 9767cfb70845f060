"""Result of `allocsim compare`: difference in memory between two runs, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from allocsim.ownership import LINE, Moment
from allocsim.report.layout import (
    WIDTH,
    and_more,
    clipped,
    fields,
    paragraph,
    plural,
    row,
    rows,
    with_status,
)
from allocsim.report.top import moment_document, moment_text
from allocsim.units import format_change, format_size

if TYPE_CHECKING:
    from allocsim.analysis.compare import Change, Comparison, Side

_ROWS = 9
_FIGURES = "{:>12} {:>11} {:>11}  "
_BELOW = 8
_LONG = ("stack", "module")
"""Kinds of memory owners with long names, which are printed on a separate line."""
PARTS = {"requested": "requested", "rounding": "rounding", "unused": "reserved but not allocated"}
"""Dictionary from a field of `Parts` (of peak reserved memory) to words for it."""
_CHANGE = "owner was status bytes requested rounding resized more a_bytes b_bytes a_blocks b_blocks"
COUNTS = {"driver_calls": "calls for memory", "retries": "retries", "ooms": "out-of-memory errors"}
"""Dictionary from a field of `Side` that counts events of the whole run to words for it."""


def text(found: Comparison, count: int | None = None) -> str:
    """Return the text of `allocsim compare`.

    count: number of owners to list; 0 for all, None for as many as fit one screen.
    """
    a, b = found.a, found.b
    lines = [*_names(a, b), *_reserved(found), *_allocated(found), *_counts(a, b), ""]
    lines.append(_FIGURES.format("change", "A", "B") + found.by)
    changed = [each for each in found.changes if each.bytes]
    if count is None:
        count = _ROWS // 2 if found.by in _LONG else _ROWS
    shown = changed[: count or None]
    for each in shown:
        lines += _row(each, is_long=found.by in _LONG)
    lines += _rest(changed[len(shown) :], len(found.changes) - len(changed), found.by)
    for note in dict.fromkeys([*a.notes, *b.notes]):
        lines += paragraph(f"note: {note}", 0)
    return "\n".join(lines) + "\n"


def _names(a: Side, b: Side) -> list[str]:
    if a.path == b.path and a.conf != b.conf:
        confs = [side.conf or "none" for side in (a, b)]
        sides = rows("Settings", [f"A  {confs[0]}", f"B  {confs[1]}"])
        return [*row("Recording", a.path), *sides]
    return rows("Recordings", [f"A  {a.path}", f"B  {b.path}"])


def _reserved(found: Comparison) -> list[str]:
    change = found.reserved_change
    lines = row(
        "Reserved", _change(found.a.reserved.reserved, found.b.reserved.reserved, "at the peak")
    )
    parts = [
        f"{format_change(size)} {PARTS[name]}" for name, size in asdict(found.parts).items() if size
    ]
    if parts and (change or len(parts) > 1):
        lines += row("", "= " + ", ".join(parts))
    return lines


def _allocated(found: Comparison) -> list[str]:
    a, b = found.a, found.b
    peak = "at the peak" if a.at.what == b.at.what == "peak" else "then"
    lines = row("Allocated", _change(a.allocated_bytes, b.allocated_bytes, peak))
    return lines + row("", f"A {_when(a.at)}; B {_when(b.at)}")


def _when(at: Moment) -> str:
    if at.entry is None:
        return moment_text(at)
    parts = [f"step {at.step}"] * bool(at.step) + [at.phase] * bool(at.phase)
    entry = f"entry {at.entry:,}"
    return f"in {', '.join(parts)} ({entry})" if parts else f"after {entry}"


def _change(a: int, b: int, when: str) -> str:
    share = f" ({(b - a) / a:+.1%})" if a and b != a else ""
    return f"{format_size(a)} -> {format_size(b)} {when}: {format_change(b - a)}{share}"


def _counts(a: Side, b: Side) -> list[str]:
    parts = []
    for name, what in COUNTS.items():
        first, second = getattr(a, name), getattr(b, name)
        if first is not None and second is not None and (first or second):
            parts.append(f"{first:,} -> {second:,} {what}")
    return row("Driver", ", ".join(parts)) if parts else []


def _row(each: Change, *, is_long: bool) -> list[str]:
    a = format_size(each.a_bytes) if each.a_blocks else ""
    b = format_size(each.b_bytes) if each.b_blocks else ""
    figures = _FIGURES.format(format_change(each.bytes), a, b)
    numbers = ", ".join(match[0] for match in LINE.finditer(each.was))
    was = f" (was {numbers})" if each.was != each.owner else ""
    if is_long:
        return [
            figures + with_status(each.status, _blocks(each)),
            " " * _BELOW + clipped(each.owner, WIDTH - _BELOW),
        ]
    return [figures + clipped(with_status(each.status, f"{each.owner}{was}"), WIDTH - len(figures))]


def _blocks(each: Change) -> str:
    if each.a_blocks == each.b_blocks:
        return plural(each.b_blocks, "block")
    return f"{each.a_blocks:,} -> {plural(each.b_blocks, 'block')}"


def _rest(rest: list[Change], same: int, by: str) -> list[str]:
    lines = []
    if rest:
        size = format_change(sum(each.bytes for each in rest))
        lines.append(f"{_FIGURES.format(size, '', '')}{and_more(len(rest))}")
    if same:
        owners = by if same == 1 else {"category": "categories"}.get(by, f"{by}s")
        lines.append(f"{_FIGURES.format('', '', '')}{same:,} other {owners} unchanged")
    return lines


def document(found: Comparison) -> dict[str, Any]:
    return {
        "a": _side_document(found.a),
        "b": _side_document(found.b),
        "peak_reserved_change": found.reserved_change,
        "parts": asdict(found.parts),
        "allocated_change": found.allocated_change,
        "by": found.by,
        "changes": [fields(each, _CHANGE) for each in found.changes],
    }


def _side_document(side: Side) -> dict[str, Any]:
    return {
        **fields(side, "path device conf peak_reserved_bytes=reserved.reserved"),
        "parts": asdict(side.reserved),
        "at": moment_document(side.at),
        **fields(side, "allocated_bytes num_alloc_retries=retries num_ooms=ooms"),
        "num_device_alloc": side.driver_calls,
        "notes": list(side.notes),
    }
