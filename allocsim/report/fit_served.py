"""Answer of `allocsim fit --server`: does a served model fit a card?  As text and as JSON.

Rule: an unknown size is shown as a range with its reason. The JSON has the keys of every answer of
`fit`; a key that cannot hold a range has the highest possible size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allocsim.fitting import Served
from allocsim.report.layout import LABEL, number, row, table
from allocsim.units import format_range, format_size


def served_text(answers: Sequence[Served]) -> str:
    """Return the text of `allocsim fit --server` for one card or several."""
    if len(answers) > 1:
        return _of_cards(answers)
    found = answers[0]
    needs = found.needs
    lines = row("Verdict", found.headline())
    needed = format_range(needs.low, needs.high)
    where = "on the card" if found.work.cards == 1 else "on each card"
    lines += row("Memory", f"{needed} {where}, with {needs.engine}:")
    for part in needs.parts:
        lines.append(f"{format_range(part.low, part.high):>{LABEL + 24}}  {part.name}")
    if found.needs.taken is not None:
        taken = f"{format_range(*found.needs.taken)} by default, whatever the request"
        lines += row("Takes", taken)
    if needs.room is not None:
        lines += row(
            "Room", f"for {number(needs.room[0])} to {number(needs.room[1])} tokens in that memory"
        )
    host = [f"{format_range(part.low, part.high)} {part.name}" for part in needs.host if part.high]
    if host:
        lines += row("Host", ", ".join(host))
    if needs.paste:
        lines += row("To paste", needs.paste)
    lines.append("")
    lines += row("Model", _model(found))
    lines += row("Work", _work(found))
    for part in needs.parts:
        if part.low != part.high and part.why:
            lines += row("Assumed", f"{part.name}: {part.why}")
    for note in needs.notes:
        lines += row("Note", note)
    return "\n".join([*lines, *row("Source", needs.source)]) + "\n"


def _model(found: Served) -> str:
    weights = found.held.weights
    return f"{found.held.name}, {weights.name}: {format_size(weights.size)} by {found.held.source}"


def _work(found: Served) -> str:
    work = found.work
    what = f"batch {work.batch} x {work.prompt:,} tokens and {work.decode:,} generated"
    return what if work.cards == 1 else f"{what}, each layer split over {work.cards} cards"


def _of_cards(answers: Sequence[Served]) -> str:
    rows: list[tuple[str, ...]] = [("card", "memory", "needs", "")]
    for found in answers:
        verdict = "fits" if found.fits else "may not" if found.may_fit else "does not"
        needed = format_range(found.needs.low, found.needs.high)
        rows.append((found.gpu.name, format_size(found.gpu.memory), needed, verdict))
    lines = table(rows, (30, 12, 26, 11))
    first = answers[0]
    lines += ["", *row("Model", _model(first)), *row("Work", _work(first))]
    return "\n".join(lines) + "\n"


def served_document(answers: Sequence[Served]) -> dict[str, Any]:
    """Return the document of `allocsim fit --server --json`.

    For several cards, it has the first card that fits, and the answer for each card.
    """
    first = next((found for found in answers if found.fits), answers[0])
    cards = {"cards": [_document(found) for found in answers]} if len(answers) > 1 else {}
    return _document(first) | cards


def _document(found: Served) -> dict[str, Any]:
    needs = found.needs
    context = next(part for part in needs.parts if part.name == "CUDA context")
    return {
        "fits": found.fits,
        "may_fit": found.may_fit,
        "gpu": found.gpu.name,
        "device_memory": found.gpu.memory,
        "context_memory": context.high,
        "peak_reserved_bytes": needs.high - context.high,
        "peak_allocated_bytes": needs.high - context.high,
        "peak_reserved_bytes_keeping_up": None,
        "peak_reserved_bytes_skewed": None,
        "needed_bytes": needs.high - context.high,
        "num_alloc_retries": 0,
        "process_bytes": [needs.low, needs.high],
        "engine": "formula",
        "server": needs.engine,
        "torch_version": None,
        "transformers": None,
        "conf": None,
        "oom": None,
        "helps": None,
        "seconds": 0.0,
        "notes": list(needs.notes),
        "breakdown": {part.name: part.high for part in needs.parts},
        "ranges": {part.name: [part.low, part.high] for part in needs.parts},
        "reasons": {part.name: part.why for part in needs.parts},
        "host": {part.name: [part.low, part.high] for part in needs.host},
        "taken_bytes": None if needs.taken is None else list(needs.taken),
        "room_tokens": None if needs.room is None else list(needs.room),
        "paste": needs.paste or None,
        "tensor_parallel": found.work.cards,
        "weights": {"format": found.held.weights.name, "bytes": found.held.weights.size},
        "source": needs.source,
        "program": f"{needs.engine} {found.held.name}, {_work(found)}",
    }
