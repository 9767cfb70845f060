"""Recommendation of `tune`, and the reason why the recommended setting helps or does not help.

The recommended setting is one of a few candidates from `allocsim.recommend`, each replayed to the
end.  The search of `tune` also tries many other settings.  A setting that reserves less than the
recommended one is shown, but not recommended: the search chose its values because they are best for
these recordings, and they may not help in another run.
"""

from __future__ import annotations

from collections.abc import Sequence

from allocsim.analysis.tune.batches import Search
from allocsim.analysis.tune.lower_bound import Bounds
from allocsim.analysis.tune.results import SettingRow
from allocsim.core import parse_conf
from allocsim.recommend import (
    MIN_SAVING_DIVISOR,
    Offer,
    Recommendation,
    WhyNot,
    choose,
    is_fitted,
    late_peak,
    overflow_of,
    proposals,
    rescues,
    was_refused,
)
from allocsim.replaying import Trials
from allocsim.simulation import Setting
from allocsim.units import format_size

_FURTHER = 20
"""Divisor: another setting is also shown if it reserves over 1/20 less than the recommended one."""


def propose(search: Search, baseline: Setting, *, expandable: bool) -> tuple[Setting, ...]:
    """Replay the candidates for a recommendation to the end, and return them.

    If a request fails under every candidate, also replay and return settings that may avoid the
    error.
    """
    config = parse_conf(baseline.conf, search.release)
    prepared = [part.prepared for part in search.parts]
    proposed = proposals(prepared, config, expandable=expandable)
    search.replay_to_end(proposed)
    if any(row.survives for row in search.rows.values()):
        return proposed
    found = rescues(prepared, config, expandable=expandable)
    search.replay_to_end(found)
    return tuple(dict.fromkeys([*proposed, *found]))


def recommendation_of(
    search: Search, baseline: SettingRow, proposed: Sequence[Setting]
) -> Recommendation:
    release, parts = search.release, search.parts
    base = Offer(baseline.setting, baseline.parts)
    if any(
        trial.was_compared and was_refused(part.prepared, trial.oom_entry)
        for part, trial in zip(parts, baseline.parts, strict=True)
    ):
        return Recommendation(base, why_not=WhyNot.REFUSED)
    if not baseline.survives and any(overflow_of(part.prepared, part.memory) for part in parts):
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
        return max(late_peak(Trials(part.prepared), setting, part.memory) for part in parts)

    return choose(base, offers, late, release, parts[0].prepared.releases)


def further_of(rows: Sequence[SettingRow], best: SettingRow | None) -> SettingRow | None:
    first = rows[0]
    if best is None or not first.survives or first.num_alloc_retries > best.num_alloc_retries:
        return None
    saved = best.peak_reserved_bytes - first.peak_reserved_bytes
    return first if saved * _FURTHER > best.peak_reserved_bytes else None


_MOSTLY_LIVE = 1 / 20  # if less of the peak is unused, no setting can save much


def judge(
    search: Search, baseline: SettingRow, best: SettingRow | None, bounds: Bounds
) -> tuple[bool, str]:
    """Return whether `best` helps, and the reason as a sentence.

    A setting helps if it avoids an error or retries, or saves at least 1 % of the peak.
    best: None if a request fails under every setting.
    bounds: memory that the recorded requests need.
    """
    if best is None:
        return False, _nothing_survives(search, bounds)
    if not baseline.survives:
        how = "as recorded" if baseline.is_as_recorded else "under the recorded settings"
        return True, f"{how} the run fails; under this setting it succeeds"
    if best.is_baseline:
        return False, f"no proposed setting is better by 1 %; {_possible_saving(baseline, bounds)}"
    what, saved, before = _saved(search, baseline, best)
    if saved * MIN_SAVING_DIVISOR >= before:
        return True, what
    if best.num_alloc_retries < baseline.num_alloc_retries:
        return True, "fewer requests have to empty the cache first"
    return False, f"the best saves less than 1 %; {_possible_saving(baseline, bounds)}"


def _saved(search: Search, baseline: SettingRow, best: SettingRow) -> tuple[str, int, int]:
    before, after = baseline.min_device_memory_bytes, best.min_device_memory_bytes
    if search.by_device and before is not None and after is not None:
        words = f"a device with {format_size(before - after)} less suffices{_share(before, after)}"
        return words, before - after, before
    before, after = baseline.peak_reserved_bytes, best.peak_reserved_bytes
    if after > before:  # the setting was chosen for fewer retries
        return "", before - after, before
    words = f"it reserves {format_size(before - after)} less at the peak{_share(before, after)}"
    return words, before - after, before


def _share(before: int, after: int) -> str:
    return f", {(before - after) / max(before, 1):.1%} of {format_size(before)}"


def _nothing_survives(search: Search, bounds: Bounds) -> str:
    live, memory = bounds.peak_live_bytes, search.device_memory
    context = max(part.prepared.context_memory for part in search.parts)
    why = "no setting tried answers every request"
    if memory is not None and live > memory - context:
        beside = " beside the CUDA context" if context else ""
        why = f"the device has {format_size(memory - context)}{beside}"
    return f"{format_size(live)} live at once, and {why}"


def _possible_saving(baseline: SettingRow, bounds: Bounds) -> str:
    above = bounds.above_ideal(baseline.peak_reserved_bytes)
    share = above / max(baseline.peak_reserved_bytes, 1)
    if share < _MOSTLY_LIVE:
        return f"only {share:.1%} of the peak is not live memory"
    return (
        f"{format_size(above)} of the peak is not live memory, but no proposed setting reclaims it"
    )
