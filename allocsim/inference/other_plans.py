"""Plans of other programs that would have left the same recording, for the what-if range.

A call of empty_cache that returns nothing to the driver leaves no entry, but under another setting
it may return memory.  Steps after which a call leaves no entry are called quiet moments.  If the
memory limit is inferred from garbage collections, several values are possible.  If the recording
marks its empty_cache calls, there are no other calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from allocsim.inference.hidden_calls import Quiet
from allocsim.recording import MarkKind
from allocsim.simulation import Plan, RecordedDevice, StepKind, joined

HIDING = 0.2
"""Smallest share of quiet moments at which the program may have made empty_cache calls that left no
entry.  Recordings of whole programs mostly have a lower share (docs/evidence/fidelity.md)."""

LEAST_DRAWN, MOST_DRAWN, MOST_SINGLE = 4, 64, 16
"""Fewest random plans; most random plans with several calls; most with a single call."""
STEPS = 400_000
"""Limit of the total number of steps of all random plans, which saves time."""


@dataclass(frozen=True, slots=True)
class OtherPlan:
    """Plan of another program that would have left the same recording.

    base: plan without the additional calls.
    calls: numbers of the steps of `base` after which the program calls empty_cache, in order.
    """

    base: Plan
    calls: tuple[int, ...] = ()

    def plan(self) -> Plan:
        """Return `base` with the calls."""
        return with_calls(self.base, self.calls) if self.calls else self.base


def open_plans(
    device: RecordedDevice, plan: Plan, quiet: Callable[[], Quiet]
) -> Iterator[OtherPlan]:
    """Yield other plans that would have left the same recording.

    Like `plan`, they leave the addresses and refusals of driver calls to the replay.
    plan: the inferred plan.
    quiet: function that returns the quiet moments; called only if the plans depend on them.
    """
    for limit in sorted({*(plan.limits or ())} - {plan.limit}):
        yield OtherPlan(replace(plan, limit=limit))
    if has_unseen_calls(device, plan):
        if device.collects_at is not None:  # perhaps garbage collection freed the memory
            yield OtherPlan(replace(plan, steps=plan.steps.without(StepKind.EMPTY_CACHE)))
        yield from _with_calls_at_rate(plan, quiet())
    elif may_hide_calls(device, plan, quiet):
        yield from _with_single_calls(plan, quiet())


def leaves_open(device: RecordedDevice, plan: Plan) -> bool:
    """Return True if the what-if range must be reported even if it is a single value.

    This is so if the recording shows some empty_cache calls or a limit, but not all calls or the
    exact limit.
    """
    return plan.limits is not None or has_unseen_calls(device, plan)


def has_unseen_calls(device: RecordedDevice, plan: Plan) -> bool:
    """Return True if the program calls empty_cache an unknown number of times."""
    is_marked = any(mark.kind is MarkKind.EMPTY_CACHE for mark in device.marks)
    return plan.n_empty_cache > 0 and not is_marked


def may_hide_calls(device: RecordedDevice, plan: Plan, quiet: Callable[[], Quiet]) -> bool:
    """Return True if the recording shows no empty_cache call, but calls may have left no entry."""
    return _shows_none(device, plan) and quiet().share >= HIDING


def _shows_none(device: RecordedDevice, plan: Plan) -> bool:
    """Return True if the recording shows no empty_cache call, but does not exclude calls.

    `allocsim record` notes every call, so its recordings exclude them.
    """
    is_open = device.provenance is None and device.hints.empties
    return is_open and not plan.empties_cache


def needs_quiet_moments(device: RecordedDevice, plan: Plan) -> bool:
    """Return True if the what-if range depends on the quiet moments."""
    return has_unseen_calls(device, plan) or _shows_none(device, plan)


def _with_calls_at_rate(plan: Plan, quiet: Quiet) -> Iterator[OtherPlan]:
    """Yield `plan` with empty_cache calls at all quiet moments, then at random quiet moments.

    The random calls are as frequent per step as the empty_cache calls that the recording shows.
    A quiet moment is a point at which such a call leaves no entry.
    """
    yield OtherPlan(plan, quiet.after)
    n_steps = len(plan.steps)
    # Moments that are not quiet show every call, so they give the number of calls per step.
    n_loud = n_steps * (1 - quiet.share)
    probability = plan.n_empty_cache / max(n_loud, 1) * n_steps / max(quiet.n_examined, 1)
    for seed in range(_n_drawn(plan, MOST_DRAWN)):
        rng = random.Random(seed)
        calls = tuple(at for at in quiet.after if rng.random() < probability)
        yield OtherPlan(plan, calls)


def _with_single_calls(plan: Plan, quiet: Quiet) -> Iterator[OtherPlan]:
    """Yield a plan with calls at all quiet moments, then plans with a single call."""
    yield OtherPlan(plan, quiet.after)
    n_drawn = min(_n_drawn(plan, MOST_SINGLE), len(quiet.after))
    for at in random.Random(0).sample(quiet.after, n_drawn):
        yield OtherPlan(plan, (at,))


def _n_drawn(plan: Plan, most: int) -> int:
    """Return the number of random plans, at most `most`, so that they have `STEPS` steps in all."""
    return min(max(STEPS // max(len(plan.steps), 1), LEAST_DRAWN), most)


def with_calls(plan: Plan, places: Sequence[int]) -> Plan:
    """Return `plan` with an empty_cache call after each step number in `places`."""
    entries = plan.steps.entry[list(places)].tolist()
    calls = [
        (at + 1, [(int(StepKind.EMPTY_CACHE), entry, 0, 0, 0)])
        for at, entry in zip(places, entries, strict=True)
    ]
    return replace(plan, steps=joined(plan.steps, calls))
