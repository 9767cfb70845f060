"""Infers what a program did that its recording does not say, by driving the model along it.

Rule: every explanation is tested by what follows.  Where memory was given back the model takes the
likeliest cause and goes on as long as its history is the recorded one.  Where they part, the last
choice that has an alternative is changed, and the model is driven again.  If no combination of
choices accounts for the recording, those that came furthest are kept.  A device that is said to
have refused requests must be one that everything else fits on, or it refused nothing.

It looks back over `LOOK_BACK` choices and drives the recording a bounded number of times: `DRIVES`,
or as many as make `STEPS` steps where that is more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from allocsim.arrays import any_of
from allocsim.core import PAGE, CachingAllocator
from allocsim.engine.calls import calls_of
from allocsim.engine.causes import (
    Cause,
    Explanation,
    called_explanation,
    explanations,
    known_explanation,
    plain_explanation,
)
from allocsim.engine.drive import PAUSE_EVERY, Drive
from allocsim.engine.fidelity import FidelityCheck
from allocsim.engine.gaps import Gap, gaps_of, sort_out
from allocsim.engine.likelihood import Facts
from allocsim.engine.plan import (
    PlainSteps,
    Plan,
    Planned,
    StepKind,
    capacity_from_oom,
)
from allocsim.engine.threshold import Threshold
from allocsim.errors import AllocsimError
from allocsim.trace import Action, Mark, Trace, pools_of

__all__ = ["DRIVES", "LOOK_BACK", "STEPS", "read_plan"]

LOOK_BACK = 12
"""Choices, counted from where the recording parts from the model, that may be made otherwise."""

DRIVES = 4
STEPS = 400_000

_EMPTY_CACHE = "empty_cache"


Make = Callable[[int | None, int | None], CachingAllocator]
"""Makes an allocator that is as the recorded one was before the first entry, with a history, on a
device of so many bytes (None: without end) and with a limit of so many (None: no limit)."""


def read_plan(
    trace: Trace,
    reserved_at_start: int,
    allocator: Make,
    memory: int | None,
    *,
    is_assumed: bool = False,
    collects_at: float | None = None,
    marks: Sequence[Mark] = (),
    empties: bool = True,
    is_made: bool = False,
) -> Plan:
    """The plan of `trace`, which begins with `reserved_at_start` bytes held from the driver.

    memory: bytes of the device, None for unknown.  is_assumed: nothing but a guess says so.
    collects_at: the garbage_collection_threshold, where it is not known of what limit.
    marks: what is known to have been called.  empties: whether empty_cache may have been called
    besides.  is_made: whether the model made the trace and `marks` are all that was called.
    """
    pools = pools_of(trace)
    calls, changes = calls_of(marks, pools.ids)
    sorted_out = sort_out(trace, pools, calls)
    plain = PlainSteps.of(trace, sorted_out)
    gaps = tuple(gaps_of(trace, pools, sorted_out, calls))
    places: list[int] = np.searchsorted(
        plain.entry, [gap.last for gap in gaps], side="right"
    ).tolist()
    max_reserved = trace.most_reserved(reserved_at_start)
    capacity = capacity_from_oom(trace, reserved_at_start)
    threshold, is_whole, n_either = None, True, 0
    is_driven, named = any(gap.is_open for gap in gaps), _naming_empty_cache(trace)
    by_calls = [known_explanation(gap) for gap in gaps] if is_driven and is_made else []
    chosen = [each for each in by_calls if each is not None]
    if chosen and len(chosen) == len(gaps):
        pass  # what was called accounts for all of it
    elif is_driven:
        facts = Facts(memory or capacity, max_reserved, named, is_assumed, empties)
        unread = Plan(plain.steps(trace), 0, None, None, 0, pools.ids, changes=changes)
        reading = _Reading(trace, unread, gaps, places, facts, allocator)
        if collects_at is not None:
            reading.threshold = Threshold(collects_at, max_reserved, facts.memory)
        is_whole = reading.read()
        n_either = reading.doubt_device() if is_whole else 0
        chosen = reading.path
        threshold = reading.threshold
    else:
        chosen = [plain_explanation(gap) for gap in gaps]
    refused = [each.refused for each in chosen if each.refused is not None]
    return Plan(
        plain.steps(trace, [(at, each.steps) for at, each in zip(places, chosen, strict=True)]),
        max_reserved,
        capacity,
        min(refused, default=None),
        sum(each.cause is Cause.EMPTY_CACHE for each in chosen),
        pools.ids,
        limit=None if threshold is None else threshold.found,
        limits=None if threshold is None else threshold.limits,
        is_whole=is_whole,
        is_proved=is_driven and is_whole,
        n_named=sum(_is_named(gap, each, named) for gap, each in zip(gaps, chosen, strict=True)),
        n_either=n_either,
        changes=changes,
    )


def _is_named(gap: Gap, explanation: Explanation, named: frozenset[int]) -> bool:
    """Whether the gap is taken for a call of empty_cache, and its Python stack says so."""
    is_call = explanation.cause is Cause.EMPTY_CACHE
    return is_call and any(entry.number in named for entry in gap.released)


def _naming_empty_cache(trace: Trace) -> frozenset[int]:
    """The entries that gave memory back and whose Python stack names empty_cache."""
    rows = np.flatnonzero(any_of(trace.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)))
    stacks = trace.frames[rows]
    naming = [
        stack
        for stack in np.unique(stacks).tolist()
        if any(frame.name == _EMPTY_CACHE for frame in trace.frame_table.stack(stack))
    ]
    return frozenset(rows[np.isin(stacks, naming)].tolist())


Watch = Callable[[CachingAllocator], None]


class _Along(Drive):
    """A drive along a recording, whose steps become known on the way."""

    def _entry(self) -> int:
        return -1

    def plain(self, start: int, stop: int) -> None:
        """Take plain steps [start, stop)."""
        for first in range(start, stop, PAUSE_EVERY):
            self._run_some(first, min(first + PAUSE_EVERY, stop))
            self._compare()

    def guessed(self, steps: Sequence[Planned], before_request: Watch | None) -> None:
        """Take steps that stand for what was not recorded."""
        for kind, _, addr, size, stream in steps:
            if before_request is not None and kind in (StepKind.ALLOC, StepKind.OOM):
                before_request(self.allocator)
            if self.stopped_at is None:
                self._take(kind, addr, size, stream)
        self._compare()

    def _compare(self) -> None:
        assert self.fidelity is not None
        self.timeline.moved.clear()
        self.fidelity.history(self.allocator.take_history())

    @property
    def has_parted(self) -> bool:
        """Whether what was done is not what was recorded."""
        assert self.fidelity is not None
        return self.stopped_at is not None or self.fidelity.has_parted


@dataclass(slots=True)
class _Choice:
    """One of several explanations: its number, and how many there are."""

    taken: int
    ways: int


@dataclass(slots=True)
class _Reading:
    """Choices under way.

    plan: of the plain steps alone.
    path: the explanation of each gap so far.
    choices: of gaps that have several.
    threshold: from where on garbage is collected, where that has to be found out.
    """

    trace: Trace
    plan: Plan
    gaps: tuple[Gap, ...]
    places: list[int]
    facts: Facts
    allocator: Make
    path: list[Explanation] = field(default_factory=list)
    choices: dict[int, _Choice] = field(default_factory=dict)
    threshold: Threshold | None = None

    def read(self) -> bool:
        """Find an explanation for each gap; whether they lead to the recording."""
        furthest: tuple[int, list[Explanation]] = (-1, [])
        budget = max(STEPS, DRIVES * len(self.trace))
        while (parted := self._drive()) is not None:
            if parted > furthest[0]:
                furthest = parted, list(self.path)
            budget -= len(self.trace)
            if budget >= 0 and self.threshold is not None and self.threshold.moves():
                self.path, self.choices, furthest = [], {}, (-1, [])
                continue
            if budget < 0 or not self._choose_again(parted):
                self.path = furthest[1]
                self._drive(is_checked=False)
                return False
        return True

    def doubt_device(self) -> int:
        """Hold the device that requests were refused by against all that was recorded.

        Where it held more at some time, or had other addresses to give, nothing was refused: the
        program called empty_cache.  Returns how many of the requests calls would explain as well.
        """
        refused = [each.refused for each in self.path if each.refused is not None]
        if self.facts.memory is not None or not refused:
            return 0
        assumed = min(refused) - PAGE
        called = [
            each if each.refused is None else called_explanation(gap)
            for gap, each in zip(self.gaps, self.path, strict=True)
        ]
        is_possible = self.facts.max_reserved <= assumed
        fits = is_possible and self._holds(self.path, assumed)
        if self.facts.empties and self._holds(called, None):
            if fits:
                return len(refused)
            self.path = called
        elif not is_possible:
            self.path = [replace(each, refused=None) for each in self.path]
        return 0

    def _holds(self, path: list[Explanation], memory: int | None) -> bool:
        """Whether `path` leads to the recording on a device of so many bytes."""
        other = replace(self, path=path, facts=replace(self.facts, memory=memory))
        return other._drive() is None

    def _choose_again(self, parted: int) -> bool:
        """Take the next explanation of the last gap up to `parted` that has one left."""
        for gap in sorted((gap for gap in self.choices if gap <= parted), reverse=True)[:LOOK_BACK]:
            choice = self.choices[gap]
            if choice.taken + 1 < choice.ways:
                self.choices = {n: each for n, each in self.choices.items() if n < gap}
                self.choices[gap] = _Choice(choice.taken + 1, choice.ways)
                del self.path[gap:]
                return True
        return False

    def _drive(self, *, is_checked: bool = True) -> int | None:
        """Drive the recording along the path, and find the rest of the path on the way.

        Returns the gap where what was done parts from what was recorded; None: nowhere.
        """
        check = FidelityCheck(self.trace)
        limit = None if self.threshold is None else self.threshold.in_force
        allocator = self.allocator(self.facts.memory, limit)
        drive = _Along(allocator, self.plan, len(self.trace), dictates=True, fidelity=check)
        at = gap = 0
        try:
            for gap, place in enumerate(self.places):
                drive.plain(at, place)
                at = place
                if is_checked and drive.has_parted:
                    return gap - 1
                drive.guessed(
                    self._explanation(gap, allocator).steps,
                    None if self.threshold is None else self._watched(gap, self.threshold),
                )
                if is_checked and drive.has_parted:
                    return gap
            drive.plain(at, len(self.plan.steps))
        except AllocsimError:
            # What PyTorch would not survive did not happen.
            if is_checked:
                return gap
            self.path += [plain_explanation(each) for each in self.gaps[len(self.path) :]]
            return None
        is_as_recorded = not drive.has_parted and check.result(allocator).is_exact
        return gap if is_checked and not is_as_recorded else None

    def _watched(self, gap: int, threshold: Threshold) -> Watch:
        return lambda allocator: threshold.learn(self.gaps[gap], allocator)

    def _explanation(self, gap: int, allocator: CachingAllocator) -> Explanation:
        if gap == len(self.path):
            ways = explanations(self.gaps[gap], allocator, self.facts)
            if len(ways) > 1:
                self.choices.setdefault(gap, _Choice(0, len(ways)))
            self.path.append(ways[self.choices[gap].taken if gap in self.choices else 0])
        return self.path[gap]
