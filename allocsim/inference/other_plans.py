"""Other programs that would have left the same recording, as plans.

A call of empty_cache that releases nothing leaves no entry, but it may release memory under another
setting.  A limit that is known only from garbage collections may be any value of a range.  Marked
calls are known and leave nothing open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from allocsim.inference.hidden_calls import Quiet
from allocsim.recording import MarkKind
from allocsim.simulation import Plan, RecordedDevice, StepKind, joined

__all__ = [
    "has_unseen_calls",
    "leaves_open",
    "may_hide_calls",
    "needs_quiet_moments",
    "open_plans",
    "with_calls",
]

HIDING = 0.2
"""Share of quiet moments from which on the program may hide calls of empty_cache.  Recordings of
whole programs mostly have less (docs/fidelity.md)."""

LEAST_DRAWN, MOST_DRAWN, MOST_SINGLE = 4, 64, 16
"""Fewest random plans, most with several calls, and most with a single call."""
STEPS = 400_000
"""Total number of steps of the random plans, which limits their number in between."""


def open_plans(device: RecordedDevice, plan: Plan, quiet: Callable[[], Quiet]) -> Iterator[Plan]:
    """Yield other plans that agree with the recording, without answers of the driver.

    plan: the inferred plan, without answers of the driver.
    quiet: function that returns the quiet moments; called only if they are needed.
    """
    for limit in sorted({*(plan.limits or ())} - {plan.limit}):
        yield replace(plan, limit=limit)
    if has_unseen_calls(device, plan):
        if device.collects_at is not None:  # the releases may be garbage collections
            yield replace(plan, steps=plan.steps.without(StepKind.EMPTY_CACHE))
        yield from _with_calls_at_rate(plan, quiet())
    elif may_hide_calls(device, plan, quiet):
        yield from _with_single_calls(plan, quiet())


def leaves_open(device: RecordedDevice, plan: Plan) -> bool:
    """Return True if the range must be reported even if it is a single value.

    The recording then shows calls or a limit that it does not determine.
    """
    return plan.limits is not None or has_unseen_calls(device, plan)


def has_unseen_calls(device: RecordedDevice, plan: Plan) -> bool:
    """Return True if the program calls empty_cache an unknown number of times."""
    is_marked = any(mark.kind is MarkKind.EMPTY_CACHE for mark in device.marks)
    return plan.n_empty_cache > 0 and not is_marked


def may_hide_calls(device: RecordedDevice, plan: Plan, quiet: Callable[[], Quiet]) -> bool:
    """Return True if the recording shows no call of empty_cache but could hide some."""
    return _shows_none(device, plan) and quiet().share >= HIDING


def _shows_none(device: RecordedDevice, plan: Plan) -> bool:
    """Return True if the recording shows no call of empty_cache and does not exclude calls.

    `allocsim record` notes every call, so its recordings exclude them.
    """
    is_open = device.provenance is None and device.hints.empties
    return is_open and not plan.empties_cache


def needs_quiet_moments(device: RecordedDevice, plan: Plan) -> bool:
    """Return True if the range of a what-if depends on the quiet moments."""
    return has_unseen_calls(device, plan) or _shows_none(device, plan)


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
    """Return the number of random plans, at most `most`."""
    return min(max(STEPS // max(len(plan.steps), 1), LEAST_DRAWN), most)


def with_calls(plan: Plan, places: Sequence[int]) -> Plan:
    """Return `plan` with calls of empty_cache after the steps at `places`."""
    entries = plan.steps.entry[list(places)].tolist()
    calls = [
        (at + 1, [(int(StepKind.EMPTY_CACHE), entry, 0, 0, 0)])
        for at, entry in zip(places, entries, strict=True)
    ]
    return replace(plan, steps=joined(plan.steps, calls))
