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
- Among free blocks of equal size the address decides, and a recording of a card does not show all
  that its driver's choice of addresses depends on (`addresses.py`): other choices that are as
  plausible are driven.

The range is no bound: a call that gives memory back early may make the peak higher.  What is marked
is known and leaves nothing open.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from allocsim.core import FreeBlockOrder
from allocsim.engine.addresses import Addresses
from allocsim.engine.fold import fold_allocated
from allocsim.engine.plan import Plan, StepKind, joined
from allocsim.engine.quiet import Quiet
from allocsim.engine.setting import Setting
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.trace import MarkKind

if TYPE_CHECKING:
    from allocsim.engine.prepared import Prepared

__all__ = [
    "asks_moments",
    "has_unseen_calls",
    "leaves_open",
    "may_hide_calls",
    "open_plans",
    "peaks_by_address",
    "peaks_left_open",
    "with_calls",
]

HIDING = 0.2
"""The share of quiet moments from which on it says little that no call shows: so many single calls
would have left no entry.  Recordings of whole programs mostly have less (docs/fidelity.md)."""

LEAST_DRAWN, MOST_DRAWN, MOST_SINGLE = 4, 64, 16
STEPS = 400_000
"""Plans with calls drawn from the quiet moments: as many as come to so many steps."""

_NO_RUN = (ConfigError, UndefinedBehaviorError, UpstreamError)


def peaks_left_open(
    prepared: Prepared, setting: Setting, device_memory: int | None
) -> tuple[int, int] | None:
    """The least and the most reserved at the peak, in bytes, over what the recording leaves open.

    None where it leaves nothing open, and where no replay comes to its end.
    """
    if prepared.is_recorded(setting):
        return None
    return _range_of(
        _peak(prepared, setting, device_memory, plan=plan) for plan in prepared.open_plans
    )


def peaks_by_address(
    prepared: Prepared, setting: Setting, device_memory: int | None
) -> tuple[int, int] | None:
    """The least and the most reserved at the peak, in bytes, over plausible choices of addresses.

    None where the recording leaves no choice, where no replay comes to its end, and for releases
    that decide between equal blocks by their age.
    """
    by_address = prepared.release.free_block_order is FreeBlockOrder.ADDRESS
    if not by_address or prepared.is_recorded(setting):
        return None
    return _range_of(
        _peak(prepared, setting, device_memory, addresses=other)
        for other in prepared.addresses.others()
    )


def _peak(
    prepared: Prepared,
    setting: Setting,
    device_memory: int | None,
    *,
    plan: Plan | None = None,
    addresses: Addresses | None = None,
) -> int | None:
    """The peak reserved of one drive, in bytes; None if it does not come to its end."""
    try:
        drive = prepared.drive(
            setting, device_memory, folder=fold_allocated, plan=plan, addresses=addresses
        )
    except _NO_RUN:
        return None
    if drive.stopped_at is not None:
        return None
    return drive.allocator.statistics().all.reserved_bytes.peak


def _range_of(found: Iterable[int | None]) -> tuple[int, int] | None:
    peaks = [peak for peak in found if peak is not None]
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
