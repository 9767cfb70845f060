"""Owners of the memory, by category, at each moment that `allocsim fit` reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocsim.cli.owners import spilled_owners_of

if TYPE_CHECKING:
    from allocsim.analysis.top import Top
    from allocsim.fitting import Fit

__all__ = ["held_at_failure", "held_at_peak", "spilled"]


def held_at_peak(found: Fit) -> Top:
    """Return the memory at the peak by category."""
    from allocsim.analysis.top import top_of_run  # noqa: PLC0415

    ran = found.ran
    return top_of_run(ran.prepared, ran.device_run, ran.busiest, by="category")


def held_at_failure(found: Fit) -> Top | None:
    """Return the memory at the failed request by category; None if none failed."""
    from allocsim.analysis.top import top_of_run  # noqa: PLC0415

    failure, ran = found.failure, found.ran
    if failure is None:
        return None
    return top_of_run(ran.prepared, ran.device_run, failure.entry, by="category")


def spilled(found: Fit) -> Top | None:
    """Return the memory requested after the card was full by category; None if none spilled."""
    if found.unlimited is None or found.lent is None:
        return None
    return spilled_owners_of([found.unlimited.prepared], [found.lent], by="category")
