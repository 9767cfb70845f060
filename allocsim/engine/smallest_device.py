"""The smallest device, and the smallest memory fraction, on which a recording goes through.

Rule: a bound is named with two replays that prove it: one of that size, which answers every
request, and one of the next smaller size, which does not or could not hold what lives at once.
Sizes are whole pages of 2 MiB, fractions whole hundredths.  A replay that fails proves it of every
size on which the driver would have refused the same calls.  In between, more memory is taken never
to hurt; the caching allocator does not promise that, so a far smaller device that happens to do
may be missed, and the bound itself is never wrong.

The peak of a replay that goes through is a device that does, too: on one of that size each request
is answered or refused as before.  Two are exceptions, where the peak is only where the search
begins: expandable segments, since their address space is 9/8 of the device and a hole beside it is
ranked by its room to grow (semantics 4.1, 4.4), and what moves with the device, as the limit of a
memory fraction (semantics 1.11; `Prepared.depends_on_device`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from allocsim.core import PAGE
from allocsim.engine.prepared import Prepared
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

_PATIENCE = 4
"""Guesses from below that go by needs alone."""

_LEAST_FRACTION = 1 / 1000
"""Below this share of a device no size is looked for."""

_NOWHERE = 1 << 60
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
    same: Guess | None = None,
    needed: Guess | None = None,
    refused: Guess | None = None,
) -> Smallest | None:
    """The least memory on which `holds` is true of the trial; None: there is none up to `most`.

    least: steps, one less cannot hold what lives at once.  first: steps to begin with; known:
    the trial there, if it holds.
    peak: of a trial that holds, the steps of its peak, where that may well be the answer.
    same: of one that holds, the fewest steps on which it would surely have gone the same way.
    needed: of one that does not, the steps that would have let the failed request through.
    refused: of one that does not, the fewest on which it might have gone another way.
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
    climb = _Climb(2 * best.entries)
    look, is_guess = low + 1 if needed is not None else high - 1, False
    if peak is not None and (needed is None or (peak(best) or high) < high):
        look, is_guess = min(peak(best) or high, high - 1), needed is not None
    fails_at, share = None, 2
    while high - low > 1:
        at = look if low < look < high else low + max((high - low) // share, 1)
        tried = trial(at)
        if tried is not None and holds(tried):
            high = at if same is None else max(min(same(tried) or at, at), low + 1)
            best, top = tried, high if peak is None else peak(tried) or high
            # What was needed, or a peak, is mostly the answer itself.
            look = min(top, high - 1) if is_guess or top < high else _NOWHERE
            is_guess = top < high
        else:
            low, fails_at = at, None if tried is None else tried.oom_entry
            if tried is not None and refused is not None:
                low = max(low, min(refused(tried) or 0, high) - 1)
            need = None if tried is None or needed is None else needed(tried)
            look = _NOWHERE if tried is None else climb.next(low, need, tried.entries)
            is_guess = look == need
            # One that fails early is cheap, so that more of them may.
            share = 3 if tried is not None and 2 * tried.entries < best.entries else 2
    return Smallest(high, best, fails_at)


@dataclass(slots=True)
class _Climb:
    """Where to look after a failure, coming from below, where most trials fail early.

    budget: entries that climbing may cost before what is left is halved instead.
    """

    budget: int
    climbs: int = 0
    stride: int = 1

    def next(self, at: int, need: int | None, entries: int) -> int:
        """The steps to try after `at` of them failed at a request that needed `need`."""
        self.climbs, self.budget = self.climbs + 1, self.budget - entries
        if need is None or self.budget <= 0:
            return _NOWHERE
        if need <= at or self.climbs > _PATIENCE:
            # What is asked for next needs hardly more, so that needs alone would crawl.
            self.stride *= 2
        return max(need, at + self.stride)


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
    least = max(unlimited.peak_allocated_bytes // PAGE, 1)
    is_free = not trials.prepared.depends_on_device(setting)
    is_alike = not is_mapped and is_free and not config.throw_on_cudamalloc_oom
    fails_alike = is_alike and not trials.prepared.start
    known = unlimited if is_alike or (is_mapped and is_free) else None
    fails_at: int | None = None
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
        found = find(least=first)  # what was only likely to do was never tried
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
    """The least memory fraction that is ever in force under `setting`; None: there is none."""
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
