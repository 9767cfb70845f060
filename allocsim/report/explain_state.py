"""Answer of `allocsim explain` for a snapshot without a history, as text and as JSON.

It says if a request would succeed in the recorded state, and if not, why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from allocsim._repr import printable
from allocsim.analysis.explain import Blocker, Refusal, StateExplanation, arithmetic_of
from allocsim.report.answer import Answer, Part, Tone, answer_of, owners_part
from allocsim.report.explain import (
    CAUSES,
    blockers_document,
    blockers_text,
    figures_document,
    idle_in_private_pools,
    kinds_table,
)
from allocsim.report.layout import exact_size, fields, plural, row, rows
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top

_SERVED = {
    "cached": "succeeds: a free block serves it, without the driver",
    "driver": "succeeds: a new segment serves it",
    "retry": "succeeds: a new segment serves it, after cached segments were released",
}
_SHOWN_OWNERS = 12
_SIZE_WIDTH = 14


def text(found: StateExplanation, top: Top | None = None) -> str:
    """Return the text of `allocsim explain -v` for a snapshot without a history."""
    source = found.source
    lines = row("Snapshot", f"{found.path}, device {source.device}: a state without a history")
    lines += row("Settings", source.conf or "PyTorch's defaults")
    lines += rows("Note", _notes(found))
    lines += ["", *_answer(found)]
    if found.refusal is not None:
        lines += ["", *_refusal(found.refusal)]
    return "\n".join([*lines, "", *owners_part(top).lines]).rstrip() + "\n"


def screen(found: StateExplanation, top: Top | None = None) -> Answer:
    refusal = found.refusal
    tone = Tone.FAILURE if refusal is not None and found.is_asked else Tone.PLAIN
    parts = [Part(_answer(found), tone), owners_part(top)]
    if refusal is not None and refusal.blockers:
        parts.append(Part(_in_the_way(refusal), rank=2, starts=True))
    parts.append(Part(rows("Note", _notes(found)), rank=1, starts=True))
    return answer_of(parts)


def _answer(found: StateExplanation) -> list[str]:
    if not found.is_asked:
        return _unasked(found)
    asked = f"{exact_size(found.requested_bytes)} on the default stream"
    if found.refusal is None:
        lines = row("Verdict", _SERVED[found.served])
    else:
        lines = row("Verdict", f"{found.refusal.cause}: {CAUSES[found.refusal.cause]}")
        lines += row("Because", _because(found.refusal))
    lines += row("Request", asked)
    return lines + row(
        "Largest", f"a request of {exact_size(found.largest_request_bytes)} succeeds"
    )


def _unasked(found: StateExplanation) -> list[str]:
    if_full = (
        ", if the driver has no free memory before a retry" if found.source.is_taken_full else ""
    )
    lines = row("Verdict", "no error is recorded: the snapshot holds a state and no history")
    largest = exact_size(found.largest_request_bytes)
    lines += row("Largest", f"a request of {largest} succeeds on the default stream")
    if found.refusal is not None:
        figures = found.refusal.figures
        tried, free = figures.tried_bytes or 0, figures.free_bytes or 0
        because = _because(found.refusal)
        if free and found.source.is_taken_full:
            because += f"; the retry releases {format_size(free)}"
        if format_size(tried) == format_size(free):
            because += f" ({tried:,} bytes tried, {free:,} free)"
        lines += row("Beyond that", f"{found.refusal.cause}{if_full}: {because}")
    return lines


def _notes(found: StateExplanation) -> list[str]:
    notes = [found.source.release_note]
    if found.source.is_taken_full:
        notes.append(
            "the driver is assumed to have no free memory, since the snapshot does not contain "
            "the device's memory; give it with --device-memory"
        )
    return notes


def _because(refusal: Refusal) -> str:
    if refusal.cause == "pending_free":
        return (
            f"{format_size(refusal.findings.late_bytes)} in one piece wait for other streams, and "
            "PyTorch does not search again after it has waited"
        )
    if refusal.cause == "private_pool":
        return idle_in_private_pools(refusal.findings.kinds)
    return arithmetic_of(refusal.cause, refusal.figures)


def _refusal(refusal: Refusal) -> list[str]:
    heading = "Use of the device's memory after the failed request"
    lines = [heading, *kinds_table(refusal.findings.kinds), ""]
    return [*lines, *_in_the_way(refusal), *_blockers_by_line(refusal.blockers)]


def _in_the_way(refusal: Refusal) -> list[str]:
    return row("In the way", blockers_text(refusal.findings.blockers))


def _blockers_by_line(blockers: Sequence[Blocker]) -> list[str]:
    if not blockers:
        return []
    owners: dict[str, list[int]] = {}
    for blocker in blockers:
        name = "no frames recorded" if blocker.code is None else str(blocker.code)
        owners.setdefault(name, []).append(blocker.size)
    ordered = sorted(owners.items(), key=lambda item: (-sum(item[1]), item[0]))
    lines = ["", f"{'size':>{_SIZE_WIDTH}}  {'blocks':>8}  allocated at"]
    for name, sizes in ordered[:_SHOWN_OWNERS]:
        shown = printable(name)[-52:]
        lines.append(f"{format_size(sum(sizes)):>{_SIZE_WIDTH}}  {len(sizes):>8,}  {shown}")
    hidden = len(ordered) - _SHOWN_OWNERS
    return lines + ([f"  and {plural(hidden, 'line')} more"] if hidden > 0 else [])


def document(found: StateExplanation) -> dict[str, Any]:
    source = found.source
    return {
        **fields(found, "file=path device=source.device conf=source.conf"),
        "torch_version": source.torch_version,
        "device_memory": None if source.is_taken_full else source.device_memory,
        "notes": _notes(found),
        "requested_bytes": found.requested_bytes,
        "served": found.served or None,
        "largest_request_bytes": found.largest_request_bytes,
        "refusal": None if found.refusal is None else _refusal_document(found.refusal),
    }


def _refusal_document(refusal: Refusal) -> dict[str, Any]:
    return {
        **fields(refusal, "cause rounded_bytes tried_bytes"),
        "figures": figures_document(refusal.figures),
        "kinds": refusal.findings.kinds,
        "blockers": [
            fields(each, "address size requested_bytes")
            | {"line": None if each.code is None else str(each.code)}
            for each in refusal.blockers
        ],
        "blockers_summary": blockers_document(refusal.findings.blockers),
    }
