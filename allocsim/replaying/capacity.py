"""Search for the smallest device or memory fraction with which every request succeeds.

Two replays confirm a result: with that size every request succeeds, and with the next smaller one
(2 MiB or 1 % less) a request fails.  The second is omitted if that size is below the allocated
memory.  The search assumes that more memory never causes a failure, which PyTorch's allocator does
not guarantee.

The peak of a replay that completes is a sufficient device size, because on such a device each
request has the same outcome.  In two cases the peak is only the first size to try: with expandable
segments, whose address space is 9/8 of the device (semantics.md, sections 4.1, 4.4), and with
limits that change with the device, such as a memory fraction (semantics.md, section 1.11).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from allocsim.core import PAGE
from allocsim.replaying.prepared import Prepared
from allocsim.replaying.trial import Trial, Trials
from allocsim.simulation import Setting

Try = Callable[[int], Trial | None]
"""Function that replays with memory of a given size, and returns the result (trial).

The size is in pages of 2 MiB, or in hundredths of the device.  The function returns None if the
start state does not fit.
"""

Guess = Callable[[Trial], int | None]
"""Function that computes a size from the result of a replay (trial); None if it suggests no size.

The size is in pages of 2 MiB, or in hundredths of the device.
"""

_MOST_STEPS = 1 << 29
"""Number of 2 MiB pages of the largest device that is tried, which has 2**50 bytes."""

_PATIENCE = 4
"""Number of failed trials after which every failure doubles the smallest increase of the size."""

_LEAST_FRACTION = 1 / 1000
"""Lower bound of the memory fraction from which the first size to try is computed."""

_NO_GUESS = 1 << 60
"""Value in place of the next size to try, if the search must bisect instead."""

_FRACTION = re.compile(r"per_process_memory_fraction\s*:\s*([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Smallest:
    """Smallest sufficient memory, with its replay.

    steps: memory in the unit of the search: pages of 2 MiB if a search varies the device
        (`smallest_device`), hundredths of the device if it varies the memory fraction.
    trial: results of the replay with this memory.
    fails_at: entry that fails with one unit less; None if that was not replayed.
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
    same: Guess | None = None,
    needed: Guess | None = None,
    refused: Guess | None = None,
) -> Smallest | None:
    """Return the smallest memory whose trial satisfies `holds`; None if no size up to `most` does.

    A trial is the result of one replay.  All sizes are in one unit: pages of 2 MiB, or hundredths
    of the device.

    trial: function that replays with memory of a given size.
    holds: function that returns True if the size of a trial is sufficient.
    least: lower bound of the result.
    first: size to try first.
    most: largest size to try.
    known: trial of `first`, if it is known and satisfies `holds`.

    The other functions compute a size from a trial.  They only reduce the number of replays:
    peak: peak of a sufficient trial, which is a likely result.
    same: smallest size at which a sufficient trial would certainly have the same outcome.
    needed: size at which the failed request of a trial would have succeeded.
    refused: smallest size at which a failed trial might have another outcome.
    """
    # Invariant: `low` is not enough, and `high` is enough once `best` is set.
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
    # Trials from below are cheap while they fail early.
    climb = _Climb(2 * best.entries)
    look, is_guess = low + 1 if needed is not None else high - 1, False
    if peak is not None and (needed is None or (peak(best) or high) < high):
        look, is_guess = min(peak(best) or high, high - 1), needed is not None
    fails_at, share = None, 2  # bisection tries the size at 1 / share of the range
    while high - low > 1:
        at = look if low < look < high else low + max((high - low) // share, 1)
        tried = trial(at)
        if tried is not None and holds(tried):
            high = at if same is None else max(min(same(tried) or at, at), low + 1)
            best, top = tried, high if peak is None else peak(tried) or high
            # The needed size or the peak is usually the result, so try one step less.
            look = min(top, high - 1) if is_guess or top < high else _NO_GUESS
            is_guess = top < high
        else:
            low, fails_at = at, None if tried is None else tried.oom_entry
            if tried is not None and refused is not None:
                low = max(low, min(refused(tried) or 0, high) - 1)
            need = None if tried is None or needed is None else needed(tried)
            look = _NO_GUESS if tried is None else climb.next_size(low, need, tried.entries)
            is_guess = look == need
            # Trials that fail early are cheap, so try smaller sizes more often.
            share = 3 if tried is not None and 2 * tried.entries < best.entries else 2
    return Smallest(high, best, fails_at)


@dataclass(slots=True)
class _Climb:
    """Choice of the next larger size after a trial that failed.

    budget: number of entries that may be replayed before the search switches to bisection.
    climbs: number of failed trials so far.
    stride: smallest increase of the size, in the unit of `find_smallest`.
    """

    budget: int
    climbs: int = 0
    stride: int = 1

    def next_size(self, at: int, need: int | None, entries: int) -> int:
        """Return the size to try after size `at` failed; `_NO_GUESS` to switch to bisection.

        need: size that the failed request needed; None if unknown.
        entries: number of entries that the failed trial replayed.
        """
        self.climbs, self.budget = self.climbs + 1, self.budget - entries
        if need is None or self.budget <= 0:
            return _NO_GUESS
        if need <= at or self.climbs > _PATIENCE:
            # The next failed request may need only a little more, so `need` alone is too slow.
            self.stride *= 2
        return max(need, at + self.stride)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Smallest device on which every request succeeds under one setting.

    device_memory: bytes of the device.
    trial, unlimited: results of the replays on that device, and on an unlimited device.
    fails_at: index of the entry whose request fails on a device 2 MiB smaller; None if no
        replay shows it.
    replays: number of replays that the search made.
    """

    device_memory: int
    trial: Trial
    fails_at: int | None
    unlimited: Trial
    replays: int


def smallest_device(trials: Trials, setting: Setting) -> Capacity | None:
    """Return the smallest device on which every request succeeds; None if there is none."""
    # The result is for a card that no other process uses.
    trials = trials.alone()
    before = trials.count
    unlimited = trials.under(setting, None)
    if not unlimited.goes_through:
        return None
    context = trials.prepared.context_memory

    def on(pages: int) -> Trial | None:
        tried = trials.under(setting, pages * PAGE + context, to_first_oom=True)
        return None if tried.error is not None else tried

    def reached(trial: Trial) -> int:
        return max(-(-(trial.peak_device_bytes - context) // PAGE), 1)

    def refused(trial: Trial) -> int | None:
        below = trial.refused_below
        return None if below is None else -(-(below - context) // PAGE)

    config = setting.config(trials.prepared.release)
    is_mapped = config.expandable_segments
    fraction = _least_fraction(trials.prepared, setting)
    first = reached(unlimited)
    if fraction is not None:
        first = int(first / max(fraction, _LEAST_FRACTION)) + 1
    # Allocated memory is a lower bound of the device size.
    least = max(unlimited.peak_allocated_bytes // PAGE, 1)
    is_free = not trials.prepared.depends_on_device(setting)
    is_alike = not is_mapped and is_free and not config.throw_on_cudamalloc_oom
    fails_alike = is_alike and not trials.prepared.start
    known = unlimited if is_alike or (is_mapped and is_free) else None
    fails_at: int | None = None
    # Narrow the range by trials from earlier searches.
    for memory, trial in trials.known(setting):
        pages: int = (memory - context) // PAGE
        if trial.goes_through:
            pages = reached(trial) if is_alike else pages
            first, known = min((first, known), (pages, trial), key=lambda each: each[0])
        elif trial.oom_entry is not None:
            most = max(pages, (refused(trial) or 0) - 1) if fails_alike else pages
            if most >= least:
                least, fails_at = most + 1, trial.oom_entry
    find = partial(
        find_smallest,
        on,
        _goes_through,
        first=first,
        most=2 * max(first, least),
        peak=reached if is_mapped else None,
        same=reached if is_alike else None,
        needed=lambda tried: pages_needed(tried, context),
        refused=refused if fails_alike else None,
    )
    found = find(least=least, known=known)
    if is_mapped and found is not None and found.trial is unlimited:
        found = find(least=first)  # no replay has confirmed this size
    if found is None:
        return None
    if found.fails_at is not None or found.steps > least:
        fails_at = found.fails_at
    if fails_at is None and found.steps > 1 and (below := on(found.steps - 1)) is not None:
        fails_at = below.oom_entry
    return Capacity(
        found.steps * PAGE + context, found.trial, fails_at, unlimited, trials.count - before
    )


def _least_fraction(prepared: Prepared, setting: Setting) -> float | None:
    at_start = prepared.in_force(setting).fraction(prepared.release)
    if setting.fraction(prepared.release) is not None:
        return at_start
    found = [change for change in prepared.plan.changes if isinstance(change, float)]
    if at_start is not None:
        found.append(at_start)
    elif prepared.plan.limit is not None and prepared.capacity is not None:
        found.append(prepared.plan.limit / prepared.capacity)
    return min(found, default=None)


def smallest_fraction(
    trials: Trials, setting: Setting, device_memory: int
) -> tuple[Setting, Trial] | None:
    """Return `setting` with its memory fraction raised until every request succeeds, and a trial.

    The trial is the result of the replay with this fraction.  Returns None if the option string
    (conf) has no per_process_memory_fraction, or if even 1.0 is too little.
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
    """Return the smallest device, in 2 MiB pages, on which a trial's failed request would succeed.

    The CUDA context is not included.  Returns None if no request failed.
    """
    if trial.needed_bytes is None:
        return None
    return -(-(trial.needed_bytes - context_memory) // PAGE)


def _goes_through(trial: Trial) -> bool:
    return trial.goes_through
