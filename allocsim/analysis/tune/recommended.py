"""Recommendation of `tune`, made from the rows of its search by the rule of all commands.

The settings to choose from are always replayed to the end, even if the search would have given them
up.  A better row that only the wider search has is shown but not recommended.
"""

from __future__ import annotations

from collections.abc import Sequence

from allocsim.analysis.tune.grid import Search
from allocsim.analysis.tune.row import Row
from allocsim.core import parse_conf
from allocsim.recommend import (
    Offer,
    Recommendation,
    WhyNot,
    choose,
    is_fitted,
    late_peak,
    overflows,
    proposals,
    rescues,
    was_refused,
)
from allocsim.replaying import Trials
from allocsim.simulation import Setting

__all__ = ["further_of", "propose", "recommendation_of"]

_FURTHER = 20
"""Divisor (1/20): a row is shown beside the recommendation if it reserves this much less."""


def propose(search: Search, baseline: Setting, *, expandable: bool) -> tuple[Setting, ...]:
    """Replay the settings to choose from to the end, and return them."""
    asked = search.asked
    config = parse_conf(baseline.conf, asked.release)
    prepared = [part.prepared for part in asked.parts]
    proposed = proposals(prepared, config, expandable=expandable)
    search.each(proposed)
    if any(row.survives for row in search.rows.values()):
        return proposed
    found = rescues(prepared, config, expandable=expandable)
    search.each(found)
    return tuple(dict.fromkeys([*proposed, *found]))


def recommendation_of(search: Search, baseline: Row, proposed: Sequence[Setting]) -> Recommendation:
    """Return the recommendation that every command makes, from the rows of this search."""
    asked = search.asked
    release, parts = asked.release, asked.parts
    base = Offer(baseline.setting, baseline.parts)
    if any(
        trial.was_compared and was_refused(part.prepared, trial.oom_entry)
        for part, trial in zip(parts, baseline.parts, strict=True)
    ):
        return Recommendation(base, why_not=WhyNot.REFUSED)
    pairs = zip(parts, asked.memories, strict=True)
    if not baseline.survives and any(overflows(part.prepared, memory) for part, memory in pairs):
        return Recommendation(base, why_not=WhyNot.FULL)
    rows = [search.rows[each] for each in proposed if each in search.rows]
    offers = [
        Offer(
            row.setting,
            row.parts,
            is_fitted=is_fitted(row.setting, baseline.setting, release),
            churns=row.cost.is_thrashing,
        )
        for row in rows
        if row.error is None and not row.is_baseline
    ]

    def late(setting: Setting) -> int:
        return max(
            late_peak(Trials(part.prepared), setting, memory)
            for part, memory in zip(parts, asked.memories, strict=True)
        )

    return choose(base, offers, late, release, parts[0].prepared.releases)


def further_of(rows: Sequence[Row], best: Row | None) -> Row | None:
    """Return the best row if it reserves much less than `best`; see `Tuning.further`."""
    first = rows[0]
    if best is None or not first.survives or first.num_alloc_retries > best.num_alloc_retries:
        return None
    saved = best.peak_reserved_bytes - first.peak_reserved_bytes
    return first if saved * _FURTHER > best.peak_reserved_bytes else None
