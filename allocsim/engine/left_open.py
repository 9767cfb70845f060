"""What a recording leaves open, and the range in which a what-if may lie because of it.

Rule: a call of empty_cache that gave nothing back left no entry, yet under another setting it may
give memory back.  What is left open is driven in every way that counts, and the results form a
range:

- A program whose recording shows calls may have made more wherever one would not have shown.  A
  what-if is driven with a call at all of those moments, and with as many calls, drawn from those
  moments, as the recording shows.
- A program whose recording shows none is taken to make none, unless a call would have left no entry
  at one moment in five or more.  Then it is driven with calls at all of these, and at single ones.
- A limit known only from the garbage that was collected under it lies in a range: both ends are
  driven.

The range is no bound: a call that gives memory back early may make the peak higher.  What is marked
is known and leaves nothing open.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from allocsim.engine.drive import Drive
from allocsim.engine.fold import fold_allocated
from allocsim.engine.plan import Plan, StepKind, joined
from allocsim.engine.setting import Setting
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamAssertionError
from allocsim.trace import MarkKind

if TYPE_CHECKING:
    from allocsim.engine.prepared import Prepared

__all__ = [
    "Probe",
    "Quiet",
    "asks_moments",
    "has_unseen_calls",
    "leaves_open",
    "may_hide_calls",
    "moments_of",
    "open_plans",
    "peaks_left_open",
    "quiet_moments",
    "with_calls",
]

MOMENTS = 2048
"""As many moments of a recording are asked whether a call would have shown."""

HIDING = 0.2
"""The share of quiet moments from which on it says little that no call shows: so many single calls
would have left no entry.  Recordings of whole programs mostly have less (docs/fidelity.md)."""

LEAST_DRAWN, MOST_DRAWN, MOST_SINGLE = 4, 64, 16
STEPS = 400_000
"""Plans with calls drawn from the quiet moments: as many as come to so many steps."""

_NO_RUN = (ConfigError, UndefinedBehaviorError, UpstreamAssertionError)


@dataclass(frozen=True, slots=True)
class Quiet:
    """The moments at which a call of empty_cache would have left no entry.

    after: the steps before them.  n_asked: the moments that were asked, of as many as there are
    steps.
    """

    after: tuple[int, ...]
    n_asked: int

    @property
    def share(self) -> float:
        """How many of the moments are quiet, from 0 to 1."""
        return len(self.after) / max(self.n_asked, 1)


def peaks_left_open(
    prepared: Prepared, setting: Setting, device_memory: int | None
) -> tuple[int, int] | None:
    """The least and the most reserved at the peak, in bytes, over what the recording leaves open.

    None where it leaves nothing open, and where no replay comes to its end.
    """
    if prepared.is_recorded(setting):
        return None
    peaks = []
    for plan in prepared.open_plans:
        try:
            drive = prepared.drive(setting, device_memory, folder=fold_allocated, plan=plan)
        except _NO_RUN:
            continue
        if drive.stopped_at is None:
            peaks.append(drive.allocator.statistics().all.reserved_bytes.peak)
    return (min(peaks), max(peaks)) if peaks else None


def open_plans(prepared: Prepared) -> Iterator[Plan]:
    """What the program may have done as well, as plans that dictate nothing."""
    plan = prepared.free_plan
    for limit in sorted({*(plan.limits or ())} - {plan.limit}):
        yield replace(plan, limit=limit)
    if has_unseen_calls(prepared):
        if prepared.collects_at is not None:
            yield replace(plan, steps=plan.steps.without(StepKind.EMPTY_CACHE))
        yield from _called_as_often(plan, prepared.quiet)
    elif may_hide_calls(prepared):
        yield from _called_once(plan, prepared.quiet)


def leaves_open(prepared: Prepared) -> bool:
    """Whether something that shows leaves a choice, so that even a peak that stays is news."""
    return prepared.plan.limits is not None or has_unseen_calls(prepared)


def has_unseen_calls(prepared: Prepared) -> bool:
    """Whether the program calls empty_cache, and how often is not known."""
    is_marked = any(mark.kind is MarkKind.EMPTY_CACHE for mark in prepared.marks)
    return prepared.plan.n_empty_cache > 0 and not is_marked


def may_hide_calls(prepared: Prepared) -> bool:
    """Whether the program shows no call of empty_cache, which says little."""
    return _shows_none(prepared) and prepared.quiet.share >= HIDING


def _shows_none(prepared: Prepared) -> bool:
    """Whether there is no call of empty_cache, as far as is known.

    `allocsim record` notes the calls, so that what it recorded made none.
    """
    is_open = prepared.provenance is None and prepared.hints.empties
    return is_open and not prepared.plan.empties_cache


def quiet_moments(prepared: Prepared) -> Quiet:
    """The moments at which a call of empty_cache would not have shown in the recording.

    Of a long recording `MOMENTS` are asked, at random, because a program's periods would meet
    even distances.  Where a proof has looked at them (`Prepared.looked`), that stands.  A replay
    that comes to no end tells nothing of what would have come after.
    """
    if prepared.looked:
        return prepared.looked[0]
    plan, device_memory = prepared.free_plan, prepared.capacity or prepared.inferred
    moments = moments_of(prepared)
    quiet: list[int] = []
    try:
        allocator = prepared.allocator(
            prepared.recorded,
            device_memory,
            base_address=prepared.first_base,
            limit=prepared.limit_for(prepared.recorded, device_memory, plan),
        )
        Probe(
            allocator,
            plan,
            len(prepared.trace),
            dictates=False,
            folder=fold_allocated,
            moments=moments,
            quiet=quiet,
        ).look()
    except _NO_RUN:
        pass  # what is known up to there counts
    return Quiet(tuple(moments[number] for number in quiet), len(moments))


def moments_of(prepared: Prepared) -> list[int]:
    """The steps of `free_plan` after which it is asked whether a call would have shown."""
    n_steps = len(prepared.free_plan.steps)
    return sorted(random.Random(0).sample(range(n_steps), min(n_steps, MOMENTS)))


def asks_moments(prepared: Prepared) -> bool:
    """Whether a what-if has to know them."""
    return has_unseen_calls(prepared) or _shows_none(prepared)


def _called_as_often(plan: Plan, quiet: Quiet) -> Iterator[Plan]:
    """Calls at all the quiet moments, and at some of them as often as calls show at the others."""
    yield with_calls(plan, quiet.after)
    n_steps = len(plan.steps)
    n_loud = n_steps * (1 - quiet.share)
    often = plan.n_empty_cache / max(n_loud, 1) * n_steps / max(quiet.n_asked, 1)
    for seed in range(_n_drawn(plan, MOST_DRAWN)):
        rng = random.Random(seed)
        yield with_calls(plan, [at for at in quiet.after if rng.random() < often])


def _called_once(plan: Plan, quiet: Quiet) -> Iterator[Plan]:
    """A call at all the quiet moments, and one at some of them."""
    yield with_calls(plan, quiet.after)
    n_drawn = min(_n_drawn(plan, MOST_SINGLE), len(quiet.after))
    for at in random.Random(0).sample(quiet.after, n_drawn):
        yield with_calls(plan, [at])


def _n_drawn(plan: Plan, most: int) -> int:
    """How many plans of so many steps are driven."""
    return min(max(STEPS // max(len(plan.steps), 1), LEAST_DRAWN), most)


def with_calls(plan: Plan, places: Sequence[int]) -> Plan:
    """`plan` with empty_cache called after the steps at `places`."""
    entries = plan.steps.entry[list(places)].tolist()
    calls = [
        (at + 1, [(int(StepKind.EMPTY_CACHE), entry, 0, 0, 0)])
        for at, entry in zip(places, entries, strict=True)
    ]
    return replace(plan, steps=joined(plan.steps, calls))


@dataclass(slots=True)
class Probe(Drive):
    """A drive that looks after which steps empty_cache would do nothing.

    moments: the steps after which it looks, in order.  quiet: the numbers of those moments.
    """

    moments: Sequence[int] = ()
    quiet: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Drive up to the last of the moments, or to an out-of-memory error that is ours alone."""
        self._run_some(0, self.moments[-1] + 1 if self.moments else 0)

    def _run_some(self, start: int, stop: int) -> None:
        first = bisect_left(self.moments, start)
        for number in range(first, bisect_left(self.moments, stop)):
            after = self.moments[number] + 1
            Drive._run_some(self, start, after)  # a class with slots is another one to super()
            if self.stopped_at is not None:
                return
            start = after
            may_call = self._scope is None and not self._waiting
            if may_call and not self.allocator.has_cached_memory:
                self.quiet.append(number)
        Drive._run_some(self, start, stop)
