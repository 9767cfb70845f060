"""Markdown tables, and the texts of errors and sizes in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["bytes_text", "error_text", "signed_percent", "table"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def signed_percent(real: int, predicted: int) -> float:
    """Return the error of `predicted` in per cent of `real`; positive if it is too much."""
    return 100 * (predicted - real) / real


def error_text(real: int, predicted: int | None) -> str:
    """Return the signed error as text: "exact", a percentage, or "-" without a prediction."""
    if predicted is None:
        return "-"
    if predicted == real:
        return "exact"
    return f"{signed_percent(real, predicted):+.3f} %"


def bytes_text(size: int | None) -> str:
    """Return a number of bytes with separators, "-" for None."""
    return "-" if size is None else f"{size:,}"
