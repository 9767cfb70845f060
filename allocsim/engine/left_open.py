"""Range of a what-if's peak when the recording does not show everything.

A call of empty_cache that releases nothing leaves no entry, but it may release memory under another
setting.  Other plans that agree with the recording are replayed, and their peaks form the range:

- If the recording shows some calls, the program may have made more wherever a call would leave no
  entry (`quiet.py`).  One plan has a call at each such moment.  Others have calls at random ones of
  these moments, as frequent as the calls that the recording shows.
- If the recording shows no call, the program is assumed to make none, unless at least `HIDING` of
  the moments could hide a call.  Then one plan has a call at each such moment, and others have a
  single call.
- If the program's limit is known only from garbage collections, the lowest and the highest possible
  limit are replayed.
- The address decides between free blocks of equal size, and the recording does not show everything
  that the driver's addresses depend on.  Other plausible choices (`addresses.py`) are replayed.

The range is not a bound: an early release may make the peak higher.  Marked calls are known, and
add nothing to it.
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
    "needs_quiet_moments",
    "has_unseen_calls",
    "leaves_open",
    "may_hide_calls",
    "open_plans",
    "peaks_by_address",
    "peaks_left_open",
    "with_calls",
]

HIDING = 0.2
"""Share of quiet moments from which on the program may hide calls of empty_cache.  Recordings of
whole programs mostly have less (docs/fidelity.md)."""

LEAST_DRAWN, MOST_DRAWN, MOST_SINGLE = 4, 64, 16
"""Fewest random plans, most with several calls, and most with a single call."""
STEPS = 400_000
"""Total number of steps of the random plans, which limits their number in between."""

_NO_RUN = (ConfigError, UndefinedBehaviorError, UpstreamError)


def peaks_left_open(
    prepared: Prepared, setting: Setting, device_memory: int | None
) -> tuple[int, int] | None:
    """Return the lowest and the highest peak reserved, in bytes, over the other possible plans.

    None if there are no such plans, or if no replay of them completes.
    """
    if prepared.is_recorded(setting):
        return None
    return _range_of(
        _peak(prepared, setting, device_memory, plan=plan) for plan in prepared.open_plans
    )


def peaks_by_address(
    prepared: Prepared, setting: Setting, device_memory: int | None
) -> tuple[int, int] | None:
    """Return the lowest and the highest peak reserved, in bytes, over plausible addresses.

    None if the recording determines the addresses, if no replay completes, and for releases whose
    tie-break is the age of blocks.
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
    """Return the peak reserved of one replay in bytes, or None if it does not complete."""
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
    """Yield other plans that agree with the recording, without answers of the driver."""
    plan = prepared.free_plan
    for limit in sorted({*(plan.limits or ())} - {plan.limit}):
        yield replace(plan, limit=limit)
    if has_unseen_calls(prepared):
        if prepared.collects_at is not None:  # the releases may be garbage collections
            yield replace(plan, steps=plan.steps.without(StepKind.EMPTY_CACHE))
        yield from _with_calls_at_rate(plan, prepared.quiet)
    elif may_hide_calls(prepared):
        yield from _with_single_calls(plan, prepared.quiet)


def leaves_open(prepared: Prepared) -> bool:
    """Return True if the range must be reported even if it is a single value.

    The recording then shows calls or a limit that it does not determine.
    """
    return prepared.plan.limits is not None or has_unseen_calls(prepared)


def has_unseen_calls(prepared: Prepared) -> bool:
    """Return True if the program calls empty_cache an unknown number of times."""
    is_marked = any(mark.kind is MarkKind.EMPTY_CACHE for mark in prepared.marks)
    return prepared.plan.n_empty_cache > 0 and not is_marked


def may_hide_calls(prepared: Prepared) -> bool:
    """Return True if the recording shows no call of empty_cache but could hide some."""
    return _shows_none(prepared) and prepared.quiet.share >= HIDING


def _shows_none(prepared: Prepared) -> bool:
    """Return True if the recording shows no call of empty_cache and does not exclude calls.

    `allocsim record` notes every call, so its recordings exclude them.
    """
    is_open = prepared.provenance is None and prepared.hints.empties
    return is_open and not prepared.plan.empties_cache


def needs_quiet_moments(prepared: Prepared) -> bool:
    """Return True if the range of a what-if depends on the quiet moments."""
    return has_unseen_calls(prepared) or _shows_none(prepared)


def _with_calls_at_rate(plan: Plan, quiet: Quiet) -> Iterator[Plan]:
    """Yield a plan with calls at all quiet moments, and plans with calls at the recorded rate."""
    yield with_calls(plan, quiet.after)
    n_steps = len(plan.steps)
    # At moments that are not quiet every call shows, so they give the rate of calls per step.
    n_loud = n_steps * (1 - quiet.share)
    probability = plan.n_empty_cache / max(n_loud, 1) * n_steps / max(quiet.n_examined, 1)
    for seed in range(_n_drawn(plan, MOST_DRAWN)):
        rng = random.Random(seed)
        yield with_calls(plan, [at for at in quiet.after if rng.random() < probability])


def _with_single_calls(plan: Plan, quiet: Quiet) -> Iterator[Plan]:
    """Yield a plan with calls at all quiet moments, and plans with one call each."""
    yield with_calls(plan, quiet.after)
    n_drawn = min(_n_drawn(plan, MOST_SINGLE), len(quiet.after))
    for at in random.Random(0).sample(quiet.after, n_drawn):
        yield with_calls(plan, [at])


def _n_drawn(plan: Plan, most: int) -> int:
    return min(max(STEPS // max(len(plan.steps), 1), LEAST_DRAWN), most)


def with_calls(plan: Plan, places: Sequence[int]) -> Plan:
    """Return `plan` with calls of empty_cache after the steps at `places`."""
    entries = plan.steps.entry[list(places)].tolist()
    calls = [
        (at + 1, [(int(StepKind.EMPTY_CACHE), entry, 0, 0, 0)])
        for at, entry in zip(places, entries, strict=True)
    ]
    return replace(plan, steps=joined(plan.steps, calls))
