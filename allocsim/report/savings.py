"""Changes of a program that need less memory, as text and as JSON.

Rule: a saving that no replay proved is called an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allocsim.editing import Saving
from allocsim.report.answer import Part
from allocsim.report.layout import WIDTH, clipped, fields, row
from allocsim.units import format_range, format_size

_FIGURES = "{:>26}  "


def savings_part(savings: Sequence[Saving], missing: int | None = None) -> Part:
    """Return a line for each change, with what it saves.

    missing: bytes that the failed request lacks; None if unknown.
    """
    if not savings:
        return Part(())
    head = "estimates of what each change saves then, from the categories"
    if missing is not None:
        head = f"{format_size(missing)} less, by one change or several (estimates):"
    lines = row("To fit", head)
    for each in savings:
        enough = ", enough" if each.is_enough else ""
        figures = "a replay serves every request"
        if each.low_bytes is not None and each.high_bytes is not None:
            figures = format_range(each.low_bytes, each.high_bytes)
        lines.append(clipped(f"{_FIGURES.format(figures)}{each.change}{enough}", WIDTH))
    return Part(lines, starts=True)


def savings_document(savings: Sequence[Saving]) -> list[dict[str, Any]]:
    keys = "change low_bytes high_bytes is_enough is_proved"
    return [fields(each, keys) for each in savings]
