"""Decision whether the best setting helps, with the reason as a sentence.

A setting helps if it avoids an error, avoids retries, or saves at least 1 % of the peak
(`recommend.MIN_SAVING_DIVISOR`).  If nothing helps, the reason says why.
"""

from __future__ import annotations

from allocsim.analysis.tune.bounds import Bounds
from allocsim.analysis.tune.grid import Asked
from allocsim.analysis.tune.row import Row
from allocsim.recommend import MIN_SAVING_DIVISOR
from allocsim.units import format_size

__all__ = ["judge"]

_MOSTLY_LIVE = 1 / 20  # with a smaller unused share of the peak there is nothing to gain


def judge(asked: Asked, baseline: Row, best: Row | None, bounds: Bounds) -> tuple[bool, str]:
    """Return True if `best` helps, and the reason."""
    if best is None:
        return False, _nothing_survives(asked, bounds)
    if not baseline.survives:
        how = "as recorded" if baseline.is_as_recorded else "under the recorded settings"
        return True, f"{how} the run fails; under this setting it succeeds"
    if best.is_baseline:
        return False, f"no proposed setting is better by 1 %; {_room(baseline, bounds)}"
    what, saved, before = _saved(asked, baseline, best)
    if saved * MIN_SAVING_DIVISOR >= before:
        return True, what
    if best.num_alloc_retries < baseline.num_alloc_retries:
        return True, "fewer requests have to empty the cache first"
    return False, f"the best saves less than 1 %; {_room(baseline, bounds)}"


def _saved(asked: Asked, baseline: Row, best: Row) -> tuple[str, int, int]:
    """Return the saving in words and in bytes, and the bytes before it."""
    before, after = baseline.min_device_memory_bytes, best.min_device_memory_bytes
    if asked.by_device and before is not None and after is not None:
        words = f"a device with {format_size(before - after)} less suffices{_share(before, after)}"
        return words, before - after, before
    before, after = baseline.peak_reserved_bytes, best.peak_reserved_bytes
    if after > before:  # the setting was chosen for fewer retries
        return "", before - after, before
    words = f"it reserves {format_size(before - after)} less at the peak{_share(before, after)}"
    return words, before - after, before


def _share(before: int, after: int) -> str:
    return f", {(before - after) / max(before, 1):.1%} of {format_size(before)}"


def _nothing_survives(asked: Asked, bounds: Bounds) -> str:
    live, memory = bounds.peak_live_bytes, asked.device_memory
    context = max(part.prepared.context_memory for part in asked.parts)
    why = "no setting tried answers every request"
    if memory is not None and live > memory - context:
        why = f"the device has {format_size(memory - context)}"
    return f"{format_size(live)} live at once, and {why}"


def _room(baseline: Row, bounds: Bounds) -> str:
    """Return a sentence part on how much of the peak could be saved at all."""
    above = bounds.above_ideal(baseline.peak_reserved_bytes)
    share = above / max(baseline.peak_reserved_bytes, 1)
    if share < _MOSTLY_LIVE:
        return f"only {share:.1%} of the peak is not live memory"
    return (
        f"{format_size(above)} of the peak is not live memory, but no proposed setting reclaims it"
    )
