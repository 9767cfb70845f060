"""The bulk check finds the same overlaps as checking blocks one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pytest

from allocsim.recording import Action, Trace
from allocsim.recording.live_blocks import never_overlap
from allocsim.state import ALLOCATED, INACTIVE, BlockState, SegmentState
from allocsim.workload import streams, training

DISJOINT = import_module("allocsim.recording.live_blocks")
MEGA = 1 << 40


class Life(NamedTuple):
    """Lifetime of a block.

    born, died: entries of its allocation and free; -1 if it existed before the first entry, 1000 if
        it is not freed.
    """

    addr: int
    size: int
    born: int
    died: int

    def meets(self, other: Life) -> bool:
        """Return True if both hold a byte at the same time."""
        in_time = max(self.born, other.born) < min(self.died, other.died)
        apart = self.addr + self.size <= other.addr or other.addr + other.size <= self.addr
        return in_time and not apart


def program(rng: random.Random, is_sound: bool) -> tuple[Trace, tuple[SegmentState, ...], bool]:
    """Return a random trace, its start, and True if any two blocks overlap."""
    live: dict[int, Life] = {}
    lives: list[Life] = []
    start = []
    rows: list[tuple[Action, int, int]] = []
    for addr in range(0, 20 * 512, 512 * 5):
        if rng.random() < 0.5:
            live[addr] = Life(addr, rng.choice((100, 512, 1024)), -1, 1000)
            start.append(BlockState(MEGA + addr, live[addr].size, 0, ALLOCATED))
        else:
            start.append(BlockState(MEGA + addr, 512, 0, INACTIVE))
    for entry in range(60):
        if live and rng.random() < 0.45:
            ended = live.pop(rng.choice(list(live)))
            lives.append(ended._replace(died=entry))
            rows.append((Action.FREE_COMPLETED, MEGA + ended.addr, ended.size))
            continue
        new = Life(rng.randrange(20) * 512, rng.choice((1, 500, 512, 2000, 4096)), entry, 1000)
        if new.addr in live or (is_sound and any(new.meets(each) for each in live.values())):
            rows.append((Action.FREE_REQUESTED, MEGA, 512))  # an entry that ends no block
            continue
        live[new.addr] = new
        rows.append((Action.ALLOC, MEGA + new.addr, new.size))
    lives += live.values()
    action, addr_of, size = zip(*rows, strict=True)
    none = np.full(len(rows), -1, np.int32)
    trace = Trace(
        device=0,
        action=np.array(action, np.uint8),
        addr=np.array(addr_of, np.uint64),
        size=np.array(size, np.int64),
        stream=np.zeros(len(rows), np.uint64),
        frames=none,
        pool_id=none.copy(),
    )
    segment = SegmentState(MEGA, 40 * 512, 0, True, (0, 0), False, tuple(start))
    return trace, (segment,), any(one.meets(other) for one, other in combinations(lives, 2))


@pytest.mark.parametrize("stretch", [1, 7, 4096])
def test_never_overlap_is_true_only_without_overlaps(
    stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any length of stretches, and blocks that live across them."""
    monkeypatch.setattr(DISJOINT, "_STRETCH", stretch)
    monkeypatch.setattr(DISJOINT, "_most_alive", lambda *_: 1)
    rng = random.Random(3)
    found = []
    for number in range(120):
        trace, start, overlaps = program(rng, is_sound=number % 2 == 0)
        assert never_overlap(trace, start) is not overlaps
        found.append(overlaps)
    assert 40 < sum(found) <= 60  # most of the unsound half


def test_never_overlap_is_false_for_too_many_nested_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unchecked data is not accepted."""
    trace = training(entries=3000).devices[0]
    assert never_overlap(trace, ())
    monkeypatch.setattr(DISJOINT, "_MOST_PAIRS", 0)
    assert not never_overlap(trace, ())


def test_never_overlap_is_false_for_an_address_taken_twice() -> None:
    trace = streams(steps=4).devices[0]
    assert never_overlap(trace, ())
    action = trace.action.copy()
    action[np.flatnonzero(action == Action.FREE_COMPLETED)[0]] = Action.ANNOTATE
    assert not never_overlap(replace(trace, action=action), ())


def test_block_past_the_last_address_is_checked_one_by_one() -> None:
    """Its end would wrap around to the first addresses."""
    trace = streams(steps=4).devices[0]
    addr = trace.addr.copy()
    own = addr == addr[np.flatnonzero(trace.action == Action.ALLOC)[0]]
    addr[own] = np.uint64((1 << 64) - 512)
    assert not never_overlap(replace(trace, addr=addr), ())


def test_never_overlap_is_false_for_addresses_too_far_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each stretch needs room for all addresses."""
    (trace,) = training(entries=3000).devices
    addr = trace.addr.copy()
    addr[trace.addr == addr.max()] += np.uint64(1 << 62)
    assert never_overlap(replace(trace, addr=addr), ())
    monkeypatch.setattr(DISJOINT, "_STRETCH", 512)
    assert not never_overlap(replace(trace, addr=addr), ())
