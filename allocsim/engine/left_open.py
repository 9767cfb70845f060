"""What a recording leaves open, and what a what-if may come to by it.

Rule: a call of empty_cache that gave nothing back left no entry, and under another setting may give
memory back.  A program that calls empty_cache where it shows may have called it wherever it would
not, so that a what-if is driven with a call at every such moment, and with calls drawn from them as
often as those that show.  A limit that only the collecting of garbage tells is one of a range, so
that it is driven with the least and the most of it.  What all of them come to is a range.  It is
no bound: a call that gives memory back early may make the peak higher.  What is marked is known
and leaves nothing open.
"""

from __future__ import annotations

import random
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

__all__ = ["has_unseen_calls", "open_plans", "peaks_left_open"]

LEAST_DRAWN, MOST_DRAWN = 4, 32
STEPS = 400_000
"""Plans with calls drawn as often as those that show: as many as come to so many steps."""


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
        except (ConfigError, UndefinedBehaviorError, UpstreamAssertionError):
            continue
        if drive.stopped_at is None:
            peaks.append(drive.allocator.statistics().all.reserved_bytes.peak)
    return (min(peaks), max(peaks)) if peaks else None


def open_plans(prepared: Prepared) -> Iterator[Plan]:
    """What the program may have done as well, as plans that dictate nothing."""
    plan = prepared.free_plan
    for limit in sorted({*(plan.limits or ())} - {plan.limit}):
        yield replace(plan, limit=limit)
    if not has_unseen_calls(prepared):
        return
    if prepared.collects_at is not None:
        yield replace(plan, steps=plan.steps.without(StepKind.EMPTY_CACHE))
    quiet = _quiet_steps(prepared)
    n_loud = len(plan.steps) - len(quiet)
    often = min(plan.n_empty_cache / max(n_loud, 1), 1.0)
    yield _with_calls(plan, quiet)
    for seed in range(min(max(STEPS // max(len(plan.steps), 1), LEAST_DRAWN), MOST_DRAWN)):
        rng = random.Random(seed)
        yield _with_calls(plan, [at for at in quiet if rng.random() < often])


def has_unseen_calls(prepared: Prepared) -> bool:
    """Whether the program calls empty_cache, and how often is not known."""
    is_marked = any(mark.kind is MarkKind.EMPTY_CACHE for mark in prepared.marks)
    return prepared.plan.n_empty_cache > 0 and not is_marked


def _quiet_steps(prepared: Prepared) -> list[int]:
    """The steps after which a call of empty_cache would not have shown in the recording."""
    device_memory = prepared.capacity or prepared.inferred
    allocator = prepared.allocator(
        prepared.recorded,
        device_memory,
        base_address=prepared.first_base,
        fast_path=False,
        limit=prepared.limit_for(prepared.recorded, device_memory, prepared.plan),
    )
    drive = _Probe(allocator, prepared.free_plan, len(prepared.trace), dictates=False)
    drive.run()
    return drive.quiet


def _with_calls(plan: Plan, places: Sequence[int]) -> Plan:
    """`plan` with empty_cache called after the steps at `places`."""
    entries = plan.steps.entry[list(places)].tolist()
    calls = [
        (at + 1, [(int(StepKind.EMPTY_CACHE), entry, 0, 0, 0)])
        for at, entry in zip(places, entries, strict=True)
    ]
    return replace(plan, steps=joined(plan.steps, calls))


@dataclass(slots=True)
class _Probe(Drive):
    """A drive that takes every step singly and sees after which one empty_cache would do nothing.

    quiet: those steps.
    """

    quiet: list[int] = field(default_factory=list)

    def _take(self, kind: int, addr: int, size: int, stream: int) -> None:
        at = len(self.timeline)
        Drive._take(self, kind, addr, size, stream)
        may_call = self._scope is None and not self._waiting
        if may_call and not self.allocator.has_cached_memory:
            self.quiet.append(at)
