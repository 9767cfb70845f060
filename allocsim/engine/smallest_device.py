"""The smallest device, and the smallest memory fraction, on which a recording goes through.

Rule: a bound is named with two replays that prove it: one of that size, which answers every
request, and one of the next smaller size, which does not or could not hold what lives at once.
Sizes are whole pages of 2 MiB, fractions whole hundredths.  In between, more memory is taken never
to hurt; the caching allocator does not promise that, so a far smaller device that happens to do
may be missed, and the bound itself is never wrong.

Where the driver refused nothing, the peak itself is a device that does: on one of that size every
request is answered as before, and on a smaller one the request of the peak is refused.  Expandable
segments are the exception, since their address space is 9/8 of the device and a hole beside it is
ranked by its room to grow (semantics 4.1, 4.4): there the peak is only where the search begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from allocsim.core import PAGE
from allocsim.engine.setting import Setting
from allocsim.engine.trial import Trial, Trials

__all__ = [
    "Capacity",
    "Smallest",
    "find_smallest",
    "pages_needed",
    "smallest_device",
    "smallest_fraction",
]

Try = Callable[[int], Trial | None]
"""A replay on so many steps of memory; None where nothing so small holds the recording's start."""

Guess = Callable[[Trial], int | None]
"""Where a trial suggests to look next, in steps; None where it tells nothing."""

_MOST_STEPS = 1 << 29
"""Pages of a device of 2**50 bytes: what does not go through there goes through nowhere."""

_CLIMBS_COST, _MOST_CLIMBS = 2, 10
"""Guesses from below, most of which fail early: how many there may be, and how many replays of the
whole recording they may cost, before they take turns with halving what is left."""

_LEAST_FRACTION = 1 / 1000
"""Below this share of a device no size is looked for."""

_NOWHERE = -1
"""Where no guess says where to look."""

_FRACTION = re.compile(r"per_process_memory_fraction\s*:\s*([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Smallest:
    """What a search came to.

    steps: of memory, the fewest that do.
    trial: the replay there.
    fails_at: the entry that fails one step below; None where that was not tried.
    """

    steps: int
    trial: Trial
    fails_at: int | None


def find_smallest(
    trial: Try,
    holds: Callable[[Trial], bool],
    *,
    least: int,
    first: int,
    most: int = _MOST_STEPS,
    known: Trial | None = None,
    peak: Guess | None = None,
    needed: Guess | None = None,
) -> Smallest | None:
    """The least memory on which `holds` is true of the trial; None: there is none up to `most`.

    least: steps, one less cannot hold what lives at once.  first: steps to begin with; known:
    the trial there, if it holds.
    peak: of a trial that holds, the steps of its peak, where that may well be the answer.
    needed: of one that does not, the steps that would have let the failed request through.
    """
    low, high = least - 1, max(first, least)
    best, step = known, high if peak is None else max(high // 8, 1)
    while best is None:
        tried = trial(high)
        if tried is not None and holds(tried):
            best = tried
        elif high >= most:
            return None
        else:
            low, high = high, min(high + step, most)
            step = high
    # A peak is mostly the answer itself; what a request needed can be told from below only.
    look = "below", high - 1
    if peak is not None and (top := peak(best)) is not None:
        look = "peak", min(top, high - 1)
    elif needed is not None:
        look = "needed", low + 1
    fails_at = None
    climbs, budget = _MOST_CLIMBS, _CLIMBS_COST * best.entries
    while high - low > 1:
        why, at = look if low < look[1] < high else ("half", (low + high) // 2)
        tried = trial(at)
        if tried is not None and holds(tried):
            high, best = at, tried
            look = "below", high - 1 if why == "needed" else _NOWHERE
            if peak is not None:
                look = "peak", peak(best) or _NOWHERE
        else:
            low, fails_at = at, None if tried is None else tried.oom_entry
            climbs, budget = climbs - 1, budget - (0 if tried is None else tried.entries)
            told = needed(tried) if needed is not None and tried is not None else None
            look = "needed", told or _NOWHERE
            if told is not None and told >= high:
                look = "below", high - 1
            elif why != "half" and (climbs <= 0 or budget <= 0):
                look = "half", _NOWHERE
    return Smallest(high, best, fails_at)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The least memory for one setting.

    device_memory: bytes of the smallest device.
    trial: its replay.
    fails_at: the entry that fails on a device 2 MiB smaller; None if nothing smaller can hold what
        the recording holds.
    unlimited: the replay on a device without end, whose peak is what the setting takes if it can.
    replays: how many this took.
    """

    device_memory: int
    trial: Trial
    fails_at: int | None
    unlimited: Trial
    replays: int


def smallest_device(trials: Trials, setting: Setting) -> Capacity | None:
    """The smallest device on which a recording goes through under `setting`.

    None if PyTorch refuses the setting or would not survive it, on a device of any size.
    """
    before = trials.count
    unlimited = trials.under(setting, None)
    if not unlimited.goes_through:
        return None
    context = trials.prepared.context_memory

    def on(pages: int) -> Trial | None:
        tried = trials.under(setting, pages * PAGE + context, to_first_oom=True)
        return None if tried.error is not None else tried

    is_mapped = setting.config(trials.prepared.release).expandable_segments
    fraction = setting.fraction(trials.prepared.release)
    first = max(-(-(unlimited.peak_device_bytes - context) // PAGE), 1)
    if fraction is not None:
        first = int(first / max(fraction, _LEAST_FRACTION)) + 1
    least = max(unlimited.peak_allocated_bytes // PAGE, 1)
    known = None if is_mapped or fraction is not None else unlimited
    for memory, trial in trials.known(setting):
        pages: int = (memory - context) // PAGE
        if trial.goes_through and pages < first:
            first, known = pages, trial
        elif trial.oom_entry is not None:
            least = max(least, pages + 1)
    found = find_smallest(
        on,
        _goes_through,
        least=least,
        first=first,
        most=2 * max(first, least),
        known=known,
        # What a mapping lacks is less than the text prints.
        needed=None if is_mapped else lambda tried: pages_needed(tried, context),
    )
    if found is None:
        return None
    fails_at = found.fails_at
    if fails_at is None and found.steps > 1 and (below := on(found.steps - 1)) is not None:
        fails_at = below.oom_entry
    return Capacity(
        found.steps * PAGE + context, found.trial, fails_at, unlimited, trials.count - before
    )


def smallest_fraction(
    trials: Trials, setting: Setting, device_memory: int
) -> tuple[Setting, Trial] | None:
    """`setting` with the least per_process_memory_fraction that goes through, and its replay.

    None if it sets no fraction, or not even the whole device would do.
    """
    conf = setting.conf
    found = _FRACTION.search(conf)
    if found is None:
        return None

    def limited(hundredths: int) -> Setting:
        return Setting(f"{conf[: found.start(1)]}{hundredths / 100:.2f}{conf[found.end(1) :]}")

    def under(hundredths: int) -> Trial:
        return trials.under(limited(hundredths), device_memory, to_first_oom=True)

    least = int(float(found[1]) * 100) + 1
    best = find_smallest(under, _goes_through, least=min(least, 100), first=100, most=100)
    return None if best is None else (limited(best.steps), best.trial)


def pages_needed(trial: Trial, context_memory: int) -> int | None:
    """The pages of a device, less its context, that would have let the failed request through."""
    if trial.needed_bytes is None:
        return None
    return -(-(trial.needed_bytes - context_memory) // PAGE)


def _goes_through(trial: Trial) -> bool:
    return trial.goes_through
