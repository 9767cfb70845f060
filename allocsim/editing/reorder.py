"""Run the training steps of a recording in another order, several times, or not at all.

Every block has one of three roles, which follows from its lifetime:

- A local block is freed in the training step that allocated it.
- A carried block is freed in the next training step, as are gradients that the next `zero_grad`
  frees.  In the new order, each step frees the carried blocks of the step that ran before it.
- A lasting block, such as the optimizer's state, is never freed by a training step.  The first
  recorded step allocated it; in the new order, the step that runs first allocates it.  Its place in
  that step is before the request that corresponds, by stack, to the request that followed it in the
  recording.

A recording is refused if a block has none of these roles, or if training steps carry different
numbers of blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import numpy as np

from allocsim.errors import ConfigError
from allocsim.simulation import StepKind, Steps

LEAST_STEPS = 3
"""Least number of training steps that show if a block is local, carried or lasting."""

FREES = (StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE)
_FIRST_NAME = 1 << 62
"""First id of a block in the new order; all recorded addresses are smaller."""

_Row = tuple[int, int]
"""Call in the new order: (index of the recorded plan step, id of its block in the new order)."""


@dataclass(slots=True)
class _Life:
    # A block that the program requests.  `request` and `frees` are indices of plan steps.
    request: int
    section: int  # index of the training step of the request; -1 before the first training step
    frees: list[int] = field(default_factory=list)
    nth: int = 0  # number of earlier requests in its training step, without lasting blocks


def reorder(
    steps: Steps, starts: Sequence[int], order: Sequence[int], stacks: Sequence[int]
) -> tuple[Steps, tuple[int, ...]]:
    """Return the allocator calls of a program with its training steps in another order.

    Returns a pair: the calls in the new order (steps of a plan for a replay), and the index of the
    first call of each training step.

    steps: allocator calls in the recorded order, called plan steps below.
    starts: index of the first plan step of each recorded training step, ascending.
    order: indices in `starts` of the training steps to run; some may repeat or be missing.
    stacks: index of the stack of each plan step; -1 without a stack.
    Raises ConfigError for too few training steps, if a training step frees a block of a step before
    the previous one, and if training steps keep different numbers of blocks for the next one.
    """
    if len(starts) < LEAST_STEPS:
        raise ConfigError(
            f"the recording shows {len(starts)} training steps; expected {LEAST_STEPS} or more to "
            "change their order"
        )
    return _Rewriter(steps, starts, stacks).run(order)


class _Rewriter:
    # A section is the range of plan steps of one training step.

    def __init__(self, steps: Steps, starts: Sequence[int], stacks: Sequence[int]) -> None:
        self._steps = steps
        self._stacks = stacks
        self._starts = list(starts)
        self._last = len(starts) - 1
        requests = np.flatnonzero(steps.kind == StepKind.ALLOC)
        self._tail = int(requests[-1]) + 1 if len(requests) else len(steps)
        """Index of the plan step after the last request; only frees follow."""
        self._lives = self._find_lives()
        self._freed = {free: life for life in self._lives.values() for free in life.frees}
        self._lasting: list[_Life] = []
        self._first_only: set[int] = set()
        """Requests of lasting blocks (never freed) in training steps after the first recorded one.

        Each is in the new order at most once, even if its training step is repeated.
        """
        self._carried: list[list[_Life]] = [[] for _ in starts]
        self._n_requests: dict[int, int] = defaultdict(int)
        self._find_roles()
        self._is_lasting = {life.request for life in self._lasting}
        self._rank = {
            life.request: rank for lives in self._carried for rank, life in enumerate(lives)
        }
        self._names: dict[int, int] = {}
        self._next_name = _FIRST_NAME
        self._rows: list[_Row] = []
        self._waiting: list[int] = []
        """Ids of blocks of the training step that ran last, which the next step frees."""

    def _section_of(self, index: int) -> int:
        return int(np.searchsorted(self._starts, index, side="right")) - 1

    def _find_lives(self) -> dict[int, _Life]:
        found: dict[int, _Life] = {}
        live: dict[int, _Life] = {}
        for index, (kind, addr) in enumerate(
            zip(self._steps.kind.tolist(), self._steps.addr.tolist(), strict=True)
        ):
            if kind == StepKind.ALLOC:
                live[addr] = found[index] = _Life(index, self._section_of(index))
            elif kind in FREES and addr in live:
                live[addr].frees.append(index)
                if kind != StepKind.FREE_REQUEST:
                    del live[addr]
        return found

    def _find_roles(self) -> None:
        open_ends: dict[int, list[_Life]] = defaultdict(list)
        for life in self._lives.values():
            end = life.frees[0] if life.frees else self._tail
            if life.section < 0 or end >= self._tail:
                open_ends[life.section].append(life)
            elif (later := self._section_of(end) - life.section) == 1:
                self._carried[life.section].append(life)
            elif later > 1:
                raise self._refusal(life.section, "keeps blocks for more than one further step")
        self._lasting = open_ends[0]
        lasting = {life.request for life in self._lasting}
        for life in self._lives.values():
            life.nth = self._n_requests[life.section]
            self._n_requests[life.section] += life.request not in lasting
        # The last training step has no next step that frees its carried blocks.  They are found by
        # position: its requests at the positions of carried blocks in the step before.
        kept = {life.nth for life in self._carried[self._last - 1]}
        self._carried[self._last] = [life for life in open_ends[self._last] if life.nth in kept]
        self._first_only = {
            life.request for section in range(1, self._last) for life in open_ends[section]
        }
        for section, lives in enumerate(self._carried):
            if len(lives) != len(self._carried[1]):
                what = f"keeps {len(lives)} blocks for the next step, and step 2 keeps "
                raise self._refusal(section, f"{what}{len(self._carried[1])}")

    def _refusal(self, section: int, what: str) -> ConfigError:
        return ConfigError(
            f"training step {section + 1} of {self._last + 1} {what}; expected steps that exchange "
            "the same blocks, so that their order can change"
        )

    def run(self, order: Sequence[int]) -> tuple[Steps, tuple[int, ...]]:
        starts = []
        for index in range(self._starts[0]):
            self._copy(index)
        for turn, section in enumerate(order):
            starts.append(len(self._rows))
            self._run_section(section, is_first=turn == 0)
        lasting = self._is_lasting | self._first_only
        for index in range(self._tail, len(self._steps)):
            life = self._freed.get(index)
            if life is None or life.section < 0 or life.request in lasting:
                self._copy(index)
            elif life.section == self._last and life.request in self._rank:
                self._free_carried(index, life)
        at = np.array([index for index, _ in self._rows], dtype=np.intp)
        names = np.array([name for _, name in self._rows], dtype=np.uint64)
        steps = self._steps
        columns = (steps.kind[at], steps.entry[at], names, steps.size[at], steps.stream[at])
        return Steps(*columns), tuple(starts)

    def _run_section(self, section: int, *, is_first: bool) -> None:
        end = self._starts[section + 1] if section < self._last else self._tail
        inserted = list(self._inserted(section, is_first=is_first))
        n_before = 0
        for index in range(self._starts[section], end):
            is_request = index in self._lives and index not in self._is_lasting
            while is_request and inserted and inserted[0][0] <= n_before:
                self._insert(inserted.pop(0)[1])
            n_before += is_request
            self._write(index, section, is_first=is_first)
        for _, index in inserted:
            self._insert(index)
        if section == self._last:
            for index in range(self._tail, len(self._steps)):
                life = self._freed.get(index)
                if life is not None and life.section == section and life.request not in self._rank:
                    self._copy(index)
        self._waiting = [self._names[life.request] for life in self._carried[section]]

    def _write(self, index: int, section: int, *, is_first: bool) -> None:
        life = self._freed.get(index)
        if life is not None and life.section == section - 1 and life.request in self._rank:
            self._free_carried(index, life)
        elif life is not None and life.section < 0 and section == 0 and not is_first:
            pass  # the training step that ran first freed this block
        elif index in self._first_only:
            if index not in self._names:
                self._copy(index)
        elif index not in self._is_lasting or (section == 0 and is_first):
            self._copy(index)

    def _inserted(self, section: int, *, is_first: bool) -> Iterator[tuple[int, int]]:
        # Yields the plan steps of other sections to insert, as (number of this section's requests
        # before the insertion, index of the plan step).
        if is_first and section:
            for index in range(self._starts[0], self._starts[1]):
                life = self._freed.get(index)
                if life is not None and life.section < 0:
                    yield 0, index
            places = self._counterparts(section)
            for life in self._lasting:
                yield places[life.nth], life.request
        elif not section and not is_first:
            n_before = 0
            for index in range(self._starts[1], self._starts[2]):
                life = self._freed.get(index)
                if life is not None and life.section == 0 and life.request in self._rank:
                    yield n_before, index
                n_before += index in self._lives

    def _counterparts(self, section: int) -> list[int]:
        # For each request of the first section, the index of the corresponding request of
        # `section`; both are counted without lasting blocks. Requests with equal stacks correspond,
        # in order. The last item is for the end of the section.
        first, other = (
            [self._stacks[life.request] for life in self._local(s)] for s in (0, section)
        )
        places = list(range(len(first) + 1))
        if len(first) == len(other):
            return places
        matcher = SequenceMatcher(None, first, other, autojunk=False)
        for _, begin, end, other_begin, other_end in matcher.get_opcodes():
            for number in range(begin, end):
                places[number] = min(other_begin + number - begin, other_end)
        places[-1] = len(other)
        return places

    def _local(self, section: int) -> Iterator[_Life]:
        for life in self._lives.values():
            if life.section == section and life.request not in self._is_lasting:
                yield life

    def _insert(self, index: int) -> None:
        life = self._freed.get(index)
        if life is not None and life.request in self._rank:
            self._free_carried(index, life)
        else:
            self._copy(index)

    def _free_carried(self, index: int, life: _Life) -> None:
        rank = self._rank[life.request]
        if rank < len(self._waiting):
            self._rows.append((index, self._waiting[rank]))

    def _copy(self, index: int) -> None:
        if index in self._lives:
            self._names[index] = self._next_name
            self._next_name += 1
        life = self._lives.get(index) or self._freed.get(index)
        name = int(self._steps.addr[index])
        if life is not None:
            if life.request not in self._names:
                return  # the training step that requests the block is left out
            name = self._names[life.request]
        self._rows.append((index, name))
