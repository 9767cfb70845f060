"""The fast path changes only the time: every script runs with and without it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from allocsim.core import (
    BRIEF,
    FREE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    IS_COMPILED,
    MALLOC,
    RELEASES,
    UNLIMITED_DEVICE,
    ReplayAllocator,
    RequestedFree,
    StepRow,
)
from allocsim.core.config import MAX_KEPT, AllocatorConfig, RoundedSizes
from allocsim.core.fast_path import LONG, MAX_SPARE, fast_pools
from allocsim.core.journal import GroupMoves, Journal, Moves, fold_records
from allocsim.errors import AllocsimError, OutOfMemoryError
from allocsim.units import GIB, KIB, MIB
from allocsim.verify.generator import make_script
from allocsim.verify.script import HANDLE, Op, Script

CORE = Path(__file__).parents[2] / "allocsim" / "core"


def takes_rows(a: ReplayAllocator) -> bool:
    return a._has_fast_path and fast_pools(a.heap, a.private_pools, a._pending) is not None


@pytest.mark.skipif(IS_COMPILED, reason="the sources are not beside a compiled core")
def test_repeated_rules_are_marked_in_both_files() -> None:
    """For speed, fast_path.py repeats rules of find_split_merge.py; a change belongs in both."""
    marks = {
        path.name: sorted(re.findall(r"# Rule (\d+\.\d+) \(also in", path.read_text()))
        for path in CORE.glob("*.py")
    }
    found = {name: rules for name, rules in marks.items() if rules}
    assert found.keys() == {"find_split_merge.py", "fast_path.py"}
    rules = ["1.5", "1.6", "1.7", "2.2", "4.4", "6.2", "6.2"]
    assert found["find_split_merge.py"] == found["fast_path.py"] == rules


class Played:
    """Allocator whose requests and frees go through `play`; declined steps become single calls.

    outcomes: result of each op, in order.
    taken: number of steps that `play` took.
    """

    def __init__(self, allocator: ReplayAllocator) -> None:
        self.allocator = allocator
        self.outcomes: list[object] = []
        self.taken = 0

    def run(self, ops: list[Op]) -> None:
        for is_row, group in groupby(ops, key=lambda op: op[0] in "af"):
            if is_row:
                self._row([as_step(op) for op in group])
                continue
            for op in group:
                self.outcomes.append(self._seldom(op))
                if self.outcomes[-1] == "UndefinedBehaviorError":
                    return

    def _row(self, steps: list[StepRow]) -> None:
        """Play one row; a step that is taken reports only its bytes."""
        rest = iter(with_brief(steps))
        while True:
            moved: list[int] = []
            left = self.allocator.play(rest, {}, moved)
            self.taken += len(moved)
            self.outcomes += moved
            if left is None:
                return
            self.outcomes.append(self._long_way(left))

    def _long_way(self, step: StepRow) -> object:
        kind, name, size, stream = step
        ptr = self.allocator.take_name(name)
        if kind == FREE:
            if ptr is None:
                return 0
            before = self.allocator.heap.live[ptr].size
            self.allocator.free(ptr)
            return -before
        try:
            ptr = self.allocator.malloc(size, stream)
        except OutOfMemoryError as error:
            return str(error)
        except (AllocsimError, ValueError) as error:
            return type(error).__name__
        if ptr is None:
            return 0
        return self.allocator.give_name(ptr, name).size

    def _seldom(self, op: Op) -> object:
        a = self.allocator
        calls: dict[str, Any] = {
            "r": self._record_stream,
            "s": lambda stream: a.synchronize(stream * HANDLE),
            "S": a.synchronize,
            "e": a.empty_cache,
            "m": lambda fraction: a.set_per_process_memory_fraction(float(fraction)),
            "c": a.set_allocator_settings,
            "k": a.reset_peak_memory_stats,
            "K": a.reset_accumulated_memory_stats,
            "P": lambda what, pool, *marks: scope(a, what, pool, marks),
        }
        try:
            return calls[op[0]](*op[1:])
        except (AllocsimError, ValueError) as error:
            return type(error).__name__

    def _record_stream(self, name: int, stream: int) -> None:
        ptr = self.allocator.take_name(name)
        if ptr is not None:
            self.allocator.record_stream(ptr, stream * HANDLE)
            self.allocator.give_name(ptr, name)

    def state(self) -> tuple[object, ...]:
        """Return all observable state, including addresses of live blocks by name."""
        a = self.allocator
        a.check()
        places = {name: block.ptr for name, block in a.heap.named.items()}
        return a.memory_stats(), a.memory_snapshot(), places, a.history


def as_step(op: Op) -> StepRow:
    letter, name, *rest = op
    return (MALLOC, name, rest[0], rest[1] * HANDLE) if letter == "a" else (FREE, name, 0, 0)


def with_brief(steps: list[StepRow]) -> list[StepRow]:
    """Return the steps with BRIEF for requests whose free is the next step."""
    following = [*steps[1:], (MALLOC, -1, 0, 0)]
    return [
        (BRIEF, *step[1:]) if step[0] == MALLOC and after[:2] == (FREE, step[1]) else step
        for step, after in zip(steps, following, strict=True)
    ]


def scope(a: ReplayAllocator, what: str, pool: int, marks: tuple[bool, ...]) -> None:
    if what == "b":
        no_split, use_on_oom = marks or (False, False)
        a.begin_allocate_to_pool(pool, no_split=bool(no_split), use_on_oom=bool(use_on_oom))
    elif what == "e":
        a.end_allocate_to_pool(pool)
    else:
        a.release_pool(pool)


def both(script: Script, release: str, *, history: bool = False) -> Iterator[Played]:
    """Run the script with and without the fast path and return both; neither may refuse it."""
    for fast in (True, False):
        try:
            allocator = ReplayAllocator(
                script.device_memory,
                script.conf,
                release,
                address_policy=script.address_policy,
                record_history=history,
                fast_path=fast,
            )
        except AllocsimError:
            continue
        played = Played(allocator)
        played.run(list(script.ops))
        yield played


@pytest.mark.parametrize("release", RELEASES)
def test_every_script_ends_the_same_both_ways(release: str) -> None:
    """Every second script has a history, whose entries are equal as well."""
    taken = 0
    for seed in range(16):
        script = make_script(seed, RELEASES[release])
        if not (pair := list(both(script, release, history=seed % 2 == 0))):
            continue
        fast, slow = pair
        assert fast.outcomes == slow.outcomes, f"seed {seed}"
        if "UndefinedBehaviorError" not in fast.outcomes:
            assert fast.state() == slow.state(), f"seed {seed}"
        assert slow.taken == 0
        taken += fast.taken
    assert taken > 100


CONFS = (
    "",
    "max_split_size_mb:24",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:24",
    "expandable_segments:True,large_segment_size_mb:12,roundup_power2_divisions:8",
)


@pytest.mark.parametrize("release", ["2.12", "2.15"])
@pytest.mark.parametrize("conf", CONFS)
def test_a_long_churn_ends_the_same_both_ways(conf: str, release: str) -> None:
    """Sizes around every limit: the split rules, max_split_size and the pools."""
    rng = random.Random(7)
    palette = [512, 700, 4 * KIB, 1 * MIB, 1 * MIB + 1, 9 * MIB, 11 * MIB, 23 * MIB, 24 * MIB]
    palette += [24 * MIB + 512, 32 * MIB, 40 * MIB] + [rng.randrange(1, 8 * MIB) for _ in range(20)]
    ops: list[Op] = []
    live: list[int] = []
    for name in range(6000):
        if live and rng.random() < 0.48:
            ops.append(["f", live.pop(-1 if rng.random() < 0.3 else rng.randrange(len(live)))])
        else:
            ops.append(["a", name, rng.choice(palette), rng.randrange(2)])
            live.append(name)
    fast, slow = both(Script(ops, 64 * GIB, conf, "bump"), release, history=True)
    assert fast.outcomes == slow.outcomes
    assert fast.state() == slow.state()
    assert fast.taken > len(ops) // 2


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_many_free_blocks_end_the_same_both_ways(conf: str) -> None:
    """Enough blocks for insertion by slices, which is decided at the beginning of a row."""
    rng = random.Random(11)
    ops: list[Op] = []
    live: list[int] = []
    for name in range(12_000):
        if name % 500 == 0:
            ops.append(["k"])
        if name > 6000 and rng.random() < 0.5:
            ops.append(["f", live.pop(rng.randrange(len(live)))])
        else:
            ops.append(["a", name, rng.randrange(1, 64 * KIB), 0])
            live.append(name)
    fast, slow = both(Script(ops, 64 * GIB, conf, "bump"), "2.15", history=True)
    assert fast.outcomes == slow.outcomes
    assert fast.state() == slow.state()
    assert len(fast.allocator.heap.small) > LONG


def row(a: ReplayAllocator, *steps: StepRow) -> tuple[int, list[int]]:
    """Return the steps taken and the bytes moved by a row on a new allocator."""
    moved: list[int] = []
    a.play(steps, {}, moved)
    return len(moved), moved


@pytest.mark.parametrize("release", RELEASES)
def test_a_hit_and_its_free_are_taken(release: str) -> None:
    a = ReplayAllocator("1GiB", torch_version=release)
    request = (MALLOC, 7, 1000, 0)
    blocks = a.heap.named
    assert a.play([request], {}, []) == request  # nothing is cached yet
    first = a.malloc(1000)
    assert a.play([request], {}, []) is None
    found = blocks[7]
    assert (found.ptr, found.size, found.requested_size) == (1024, 1024, 1000)
    moved: list[int] = []
    assert a.play([(FREE, 7, 0, 0)], {}, moved) is None
    assert moved == [-1024]
    assert blocks == {}
    assert a.heap.live.keys() == {first}


def test_a_row_stops_at_what_is_not_plain_and_goes_on_after_it() -> None:
    """An unknown name, and a kind that only the caller knows."""
    a = ReplayAllocator("1GiB")
    a.malloc(512)
    unknown, own = (FREE, 99, 0, 0), (5, 1, 2, 3)
    steps = iter([(MALLOC, 1, 512, 0), unknown, (MALLOC, 2, 512, 0), own, (FREE, 1, 0, 0)])
    blocks = a.heap.named
    moved: list[int] = []
    assert a.play(steps, {}, moved) == unknown
    assert moved == [512]
    assert a.play(steps, {}, moved) == own
    assert a.play(steps, {}, moved) is None
    assert moved == [512, 512, -512]
    assert blocks.keys() == {2}


@pytest.mark.parametrize("held", [(), (512,), (2048,), (512, 30 * MIB)])
@pytest.mark.parametrize("size", [100, 2 * MIB, 3 * MIB, 12 * MIB, 20 * MIB, 30 * MIB])
@pytest.mark.parametrize("conf", [*CONFS, "max_split_size_mb:24,garbage_collection_threshold:0.5"])
def test_a_brief_request_leaves_what_a_request_and_its_free_would(
    conf: str, size: int, held: tuple[int, ...]
) -> None:
    """At the front of a segment and in its rest, for a split and for a whole block."""
    ways: list[object] = []
    for kind in (BRIEF, MALLOC):
        a = ReplayAllocator("1GiB", conf, record_history=True)
        a.set_per_process_memory_fraction(0.9)
        for each in [a.malloc(2048), a.malloc(2 * MIB), a.malloc(30 * MIB)]:
            a.free(each)
        for each in held:
            a.malloc(each)
        a.malloc(512)  # a search more, which ages what is cached
        moved: list[int] = []
        steps = [(kind, 1, size, 0), (FREE, 1, size, 0)]
        left = a.play(steps, {}, moved)
        assert left in (None, steps[0])  # where no free block is long enough
        pools = (a.heap.small, a.heap.large)
        ages = [
            (block.ptr, block.gc_base) for pool in pools for block in pool if not block.is_split
        ]
        ways.append((moved, ages, a.memory_stats(), a.memory_snapshot(), a.history))
        a.check()
    assert ways[0] == ways[1]


def test_a_brief_request_under_a_name_that_another_block_has_takes_it() -> None:
    """As for any request: the free applies to the last block, and the first is lost."""
    ways: list[object] = []
    for kind in (BRIEF, MALLOC):
        a = ReplayAllocator("1GiB", record_history=True)
        a.free(a.malloc(2048))
        steps = [(MALLOC, 1, 512, 0), (kind, 1, 700, 0), (FREE, 1, 700, 0)]
        places: list[int] = []
        assert a.play(steps, {}, [], places) is None
        assert not a.heap.named
        ways.append((places, a.memory_stats(), a.memory_snapshot()))
    assert ways[0] == ways[1]


@pytest.mark.parametrize("kind", [FREE_REQUESTED, FREE_COMPLETED])
def test_a_free_of_what_nobody_handed_out_is_left(kind: int) -> None:
    a = ReplayAllocator("1GiB")
    step = (kind, 99, 0, 0)
    assert a.play([step], {}, []) == step


def test_places_stand_for_the_entries_of_plain_steps() -> None:
    """One place for each step taken; the history has only the entries of single calls."""
    steps = [
        (MALLOC, 1, 700, 0),
        (MALLOC, 2, 900, 0),
        (FREE, 1, 700, 0),
        (FREE_REQUESTED, 2, 900, 0),
        (FREE_COMPLETED, 2, 900, 0),
        (BRIEF, 3, 600, 0),
        (FREE, 3, 600, 0),
    ]
    placed, kept = (ReplayAllocator("1GiB", record_history=True) for _ in range(2))
    for a in (placed, kept):
        a.free(a.malloc(2048))
        a.take_history()
    places: list[int] = []
    assert placed.play(steps, {}, [], places) is None
    assert kept.play(steps, {}, []) is None
    of_steps = [(at,) * (1 + (kind == FREE)) for (kind, *_), at in zip(steps, places, strict=True)]
    assert [at for group in of_steps for at in group] == [e.address for e in kept.history]
    assert placed.history == []
    placed.empty_cache()
    assert [entry.action for entry in placed.history] == ["segment_free"]
    assert placed.memory_stats().keys() == kept.memory_stats().keys()


@pytest.mark.parametrize("kind", [FREE, FREE_REQUESTED, FREE_COMPLETED])
@pytest.mark.parametrize(("size", "stream"), [(701, 0), (700, 5)])
def test_a_free_of_another_size_or_stream_is_left_where_places_are_noted(
    kind: int, size: int, stream: int
) -> None:
    """The step and its place would give other entries than its block."""
    a = ReplayAllocator("1GiB", record_history=True)
    a.free(a.malloc(2048))
    a.take_history()
    waiting: dict[int, RequestedFree] = {}
    places: list[int] = []
    before = [(MALLOC, 1, 700, 0)] + [(FREE_REQUESTED, 1, 700, 0)] * (kind == FREE_COMPLETED)
    assert a.play(before, waiting, [], places) is None
    step = (kind, 1, size, stream)
    assert a.play([step], waiting, [], places) == step
    assert len(places) == len(before)
    assert a.play([(kind, 1, 700, 0)], waiting, [], places) is None
    assert len(places) == len(before) + 1
    a.check()


def test_a_free_that_is_told_waits_for_no_stream() -> None:
    """The recording shows when it was complete, whichever streams used the block."""
    fast, slow = ReplayAllocator("1GiB"), ReplayAllocator("1GiB")
    waiting: dict[int, RequestedFree] = {}
    for a in (fast, slow):
        used = a.malloc(512)
        assert used is not None
        a.record_stream(used, 7)
        a.give_name(used, 1)
    assert fast.play([(FREE_REQUESTED, 1, 0, 0)], waiting, []) is None
    ptr = slow.take_name(1)
    assert ptr is not None
    requested = slow.request_free(ptr)
    assert fast.memory_snapshot() == slow.memory_snapshot()
    assert fast.memory_stats() == slow.memory_stats()
    assert fast.play([(FREE_COMPLETED, 1, 0, 0)], waiting, []) is None
    slow.complete_free(requested)
    assert fast.memory_snapshot() == slow.memory_snapshot()
    assert fast.memory_stats() == slow.memory_stats()
    fast.check()


def test_a_block_that_another_stream_uses_is_left() -> None:
    a = ReplayAllocator("1GiB")
    used = a.malloc(512)
    assert used is not None
    a.record_stream(used, 7)
    a.give_name(used, 1)
    free = (FREE, 1, 0, 0)
    assert a.play([free], {}, []) == free
    assert a.heap.named.keys() == {1}
    assert a.take_name(1) == used


@pytest.mark.parametrize("size", [0, -1, 1 << 60, 1 << 63])
def test_sizes_that_never_reach_the_allocator_are_left(size: int) -> None:
    a = ReplayAllocator("1GiB")
    a.free(a.malloc(512))
    request = (MALLOC, 1, size, 0)
    assert a.play([request], {}, []) == request


def test_an_object_is_used_again() -> None:
    a = ReplayAllocator("1GiB")
    a.malloc(512)
    blocks = a.heap.named
    a.play([(MALLOC, 1, 512, 0), (MALLOC, 2, 512, 0)], {}, [])
    block, rest = blocks[1], blocks[2].next
    # The second absorbs its neighbours.
    a.play([(FREE, 1, 0, 0), (FREE, 2, 0, 0)], {}, [])
    a.play([(MALLOC, 1, 512, 0), (MALLOC, 2, 512, 0)], {}, [])
    assert {blocks[1], blocks[2]} == {block, rest}
    a.check()


@pytest.mark.parametrize("told_first", [True, False])
def test_an_object_that_someone_may_still_hold_is_not(told_first: bool) -> None:
    """An object that waited for streams is never used again for another block."""
    a = ReplayAllocator("1GiB")
    a.malloc(512)
    pair = [a.malloc(512), a.malloc(512)]
    first, other = pair if told_first else reversed(pair)
    a.malloc(512)
    assert first is not None
    assert other is not None
    block, blocks = a.heap.live[first], a.heap.named
    a.give_name(other, 1)
    free = a.request_free(first)
    a.complete_free(free)
    assert a.play([(FREE, 1, 0, 0)], {}, []) is None
    assert block.key == 0  # it was absorbed
    a.play([(MALLOC, name, 512, 0) for name in range(3)], {}, [])
    assert block not in blocks.values()
    assert not a.complete_free(free)


def test_garbage_collection_knows_the_ages_of_what_went_this_way() -> None:
    """A threshold set later counts from the moment when a block became free."""
    ops: list[Op] = [["a", 0, 20 * MIB, 0], ["a", 1, 20 * MIB, 0], ["a", 2, 20 * MIB, 0]]
    ops += [["f", 1], ["f", 2], ["a", 3, 12 * MIB, 0], ["f", 3]]
    ops += [["c", "garbage_collection_threshold:0.5"], ["m", 0.9], ["a", 4, 25 * MIB, 0]]
    fast, slow = both(Script(ops, 100 * MIB, "", "bump"), "2.15")
    assert fast.taken == 4
    assert fast.outcomes == slow.outcomes
    assert fast.state() == slow.state()
    assert fast.allocator.memory_stats()["num_device_free"] > 0


def test_garbage_collection_counts_the_searches_of_rows() -> None:
    """25 MiB that were free during ten searches are released; 26 MiB freed last stay."""
    ops: list[Op] = [["m", 0.5], ["a", 0, 25 * MIB, 0], ["a", 1, 26 * MIB, 0], ["a", 2, MIB * 3, 0]]
    ops += [["f", 0]]
    ops += [op for name in range(3, 13) for op in (["a", name, 2 * MIB, 0], ["f", name])]
    ops += [["f", 1], ["a", 13, 40 * MIB, 0]]
    fast, slow = both(Script(ops, 400 * MIB, "garbage_collection_threshold:0.35", "bump"), "2.15")
    assert fast.taken == 22
    assert fast.outcomes == slow.outcomes
    assert fast.state() == slow.state()
    segments = {segment["total_size"] // MIB for segment in fast.allocator.memory_snapshot()}
    assert segments == {20, 26, 40}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.begin_allocate_to_pool(1, no_split=True),
        lambda a: a.record_stream(a.malloc(512), 7),
    ],
    ids=["a scope that splits no block", "a free that waits"],
)
def test_what_needs_more_than_the_plain_rules_is_left(spoil: Any) -> None:
    a = ReplayAllocator("1GiB")
    ptr = a.malloc(512)
    assert ptr is not None
    a.give_name(ptr, 1)
    assert takes_rows(a)
    spoil(a)
    for used in list(a.heap.live):
        a.free(used)
    request, free = (MALLOC, 2, 512, 0), (FREE, 1, 0, 0)
    assert a.play([request], {}, []) == request
    assert a.play([free], {}, []) == free
    assert a.take_name(1) == ptr
    assert a.heap.live.keys() == {ptr}
    assert not a.heap.named


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("release", ["2.3", "2.9", "2.15"])
def test_a_scope_s_requests_are_served_from_its_pool(release: str, conf: str) -> None:
    """Independent of free blocks in the default pools; earlier blocks return there."""
    ops: list[Op] = [["a", name, size, 0] for name, size in enumerate((512, 512, MIB * 3, MIB * 3))]
    ops += [["f", 0], ["f", 2], ["P", "b", 1], ["a", 5, 512, 0], ["a", 6, 3 * MIB, 0]]
    ops += [["a", 7, 512, 0], ["f", 6], ["f", 1], ["a", 8, 2 * MIB, 0], ["P", "e", 1]]
    ops += [["a", 9, 512, 0], ["f", 8], ["f", 7], ["a", 10, 3 * MIB, 0], ["P", "r", 1], ["e"]]
    fast, slow = both(Script(ops, GIB, conf, "bump"), release)
    assert fast.outcomes == slow.outcomes
    assert fast.state() == slow.state()
    assert fast.taken == 12  # all but the four that had to get memory
    places = {name: block.ptr for name, block in fast.allocator.heap.named.items()}
    private = [s for s in fast.allocator.memory_snapshot() if s["segment_pool_id"] == (0, 1)]
    assert any(s["address"] <= places[5] < s["address"] + s["total_size"] for s in private)
    assert places[9] < min(s["address"] for s in private)


@pytest.mark.parametrize("release", ["2.1", "2.2"])
def test_a_scope_of_one_stream_is_left(release: str) -> None:
    a = ReplayAllocator("1GiB", torch_version=release)
    a.begin_allocate_to_pool(1, stream=0)
    assert not takes_rows(a)


def test_a_pool_that_was_forgotten_inside_its_scope_is_left() -> None:
    """The next request ends as it would without rows."""
    a = ReplayAllocator("1GiB")
    a.begin_allocate_to_pool(1)
    a.free(a.malloc(512))
    assert takes_rows(a)
    a.release_pool(1)
    a.empty_cache()
    assert not takes_rows(a)


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_frees_that_are_told_to_be_complete_end_the_same_both_ways(conf: str, seed: int) -> None:
    """Statistics too, at any time: a waiting block is active and no longer allocated."""
    rng = random.Random(seed)
    steps: list[StepRow] = []
    live: list[int] = []
    pending: list[int] = []
    for name in range(6000):
        size = rng.choice((512, 70_000, 3 * MIB, 11 * MIB, 30 * MIB))
        steps.append((MALLOC, name, size, rng.choice((0, 0, HANDLE))))
        live.append(name)
        while len(live) > rng.choice((40, 60)):
            freed = live.pop(rng.randrange(len(live)))
            is_told = rng.random() < 0.4
            steps.append((FREE_REQUESTED if is_told else FREE, freed, 0, 0))
            pending += [freed] * is_told
        while len(pending) > rng.choice((0, 15)):
            steps.append((FREE_COMPLETED, pending.pop(rng.randrange(len(pending))), 0, 0))
    steps.append((FREE_REQUESTED, live.pop(), 0, 0))
    fast, slow = (ReplayAllocator("64GiB", conf, fast_path=way) for way in (True, False))
    slow.heap.stats.folder = fold_one_by_one
    stats = []
    for allocator in (fast, slow):
        rest = iter(steps)
        waiting: dict[int, RequestedFree] = {}
        moved: list[int] = []
        while (left := allocator.play(rest, waiting, moved)) is not None:
            moved.append(taken_the_long_way(allocator, left, waiting))
        allocator.check()
        waiting_at = {name: free.block.ptr for name, free in waiting.items() if free.block}
        stats.append((allocator.memory_stats(), allocator.memory_snapshot(), waiting_at, moved))
    assert stats[0] == stats[1]
    assert stats[0][0]["active.all.current"] > stats[0][0]["allocation.all.current"]


def taken_the_long_way(
    allocator: ReplayAllocator, step: StepRow, waiting: dict[int, RequestedFree]
) -> int:
    """Run a step by single calls and return the change of allocated bytes."""
    kind, name, size, stream = step
    if kind == MALLOC:
        ptr = allocator.malloc(size, stream)
        assert ptr is not None
        return allocator.give_name(ptr, name).size
    if kind == FREE_COMPLETED:
        assert allocator.complete_free(waiting.pop(name))
        return 0
    freed = allocator.take_name(name)
    assert freed is not None
    before = allocator.heap.live[freed].size  # it may be longer once it is free
    if kind == FREE:
        allocator.free(freed)
    else:
        waiting[name] = allocator.request_free(freed)
    return -before


def fold_one_by_one(journal: Journal) -> tuple[GroupMoves, GroupMoves, GroupMoves]:
    """Fold each record separately."""
    sizes, requests, inactive, waited_at, waits = journal
    totals = [[Moves() for _ in range(7)] for _ in range(3)]
    for at in range(len(sizes) + 1):
        due = [wait for where, wait in zip(waited_at, waits, strict=True) if where == at]
        record = [(sizes[at], requests[at], inactive[at])] if at < len(sizes) else []
        one = ([s for s, _, _ in record], [r for _, r, _ in record], [i for _, _, i in record])
        moves = fold_records((*one, [0] * len(due), due))
        for total, moved in zip(totals, moves, strict=True):
            for sum_, more in zip(total, moved, strict=True):
                sum_.peak = max(sum_.peak, sum_.change + more.peak)
                sum_.change += more.change
                sum_.grown += more.grown
    every, small, large = (tuple(total) for total in totals)
    return every, small, large  # type: ignore[return-value]


def test_blocks_from_max_split_size_on_are_counted_and_kept_whole() -> None:
    """They are not split, and not used for a much smaller request (1.6)."""
    a = ReplayAllocator("1GiB", "max_split_size_mb:24,max_non_split_rounding_mb:30")
    a.free(a.malloc(60 * MIB))
    assert row(a, (MALLOC, 1, 23 * MIB, 0)) == (0, [])
    assert row(a, (MALLOC, 1, 30 * MIB, 0)) == (0, [])
    assert row(a, (MALLOC, 1, 30 * MIB + 1, 0)) == (1, [60 * MIB])
    large = a.malloc(24 * MIB)
    assert large is not None
    assert a.memory_stats()["oversize_allocations.current"] == 2
    a.give_name(large, 2)
    assert a.play([(FREE, 2, 0, 0)], {}, []) is None
    assert a.memory_stats()["oversize_allocations.current"] == 1
    a.check()


def test_blocks_above_a_limit_are_split_with_expandable_segments() -> None:
    """Down to 512 bytes, like all blocks there (1.7); a block that is too long is still refused."""
    a = ReplayAllocator("1GiB", "max_split_size_mb:24,expandable_segments:True")
    first = a.malloc(60 * MIB)
    assert first is not None
    a.free(first)
    assert row(a, (MALLOC, 1, 40 * MIB, 0)) == (0, [])
    assert row(a, (MALLOC, 1, 40 * MIB + 1, 0)) == (1, [40 * MIB + 512])
    assert a.memory_stats()["oversize_allocations.current"] == 1
    assert a.malloc(20 * MIB - 512) == first + 40 * MIB + 512
    a.check()


def test_the_number_of_an_object_is_the_same_both_ways() -> None:
    """2.12 prefers the older object of equal size (1.5, 2.2).

    The front of a split is a new object, and a merged block keeps the number of the freed one.
    """
    asked = [(name, size) for name in range(400) for size in (3 * MIB, 4 * MIB)]
    ops: list[Op] = [["a", 2 * name + size % 3, size, 0] for name, size in asked]
    names = [op[1] for op in ops]
    random.Random(5).shuffle(names)
    ops += [["f", name] for name in names[:600]]
    ops += [["a", name, 3 * MIB, 0] for name in names[:500]]
    fast, slow = both(Script(ops, 64 * GIB, "", "bump"), "2.12")
    assert fast.outcomes == slow.outcomes
    assert fast.state() == slow.state()
    assert fast.taken > 1500
    numbers = [[block.rank for block in a.allocator.heap.large] for a in (fast, slow)]
    assert numbers[0] == numbers[1]


def test_expandable_segments_are_taken_until_they_are_switched_off() -> None:
    """Then a search must skip their blocks (4.4)."""
    a = ReplayAllocator("1GiB", "expandable_segments:True")
    first = a.malloc(3 * MIB)
    a.free(first)
    moved: list[int] = []
    assert a.play([(MALLOC, 1, 3 * MIB + 1, 0)], {}, moved) is None
    assert moved == [3 * MIB + 512]  # the other 17 MiB less 512 bytes are split off
    a.set_allocator_settings("expandable_segments:False")
    assert a.play([(FREE, 1, 0, 0)], {}, []) == (FREE, 1, 0, 0)
    assert a.malloc(3 * MIB) != first


def test_the_hole_with_the_least_room_is_taken() -> None:
    """Two holes serve a request; the smaller one is followed by unmapped space (4.4)."""
    a, b = (
        ReplayAllocator("8GiB", "expandable_segments:True", fast_path=fast)
        for fast in (True, False)
    )
    for one in (a, b):
        held = [one.malloc(size * MIB) for size in (20, 20, 15)]
        one.free(held[0])
    assert a.memory_snapshot()[0]["total_size"] == 60 * MIB  # 5 MiB are left at the end of it
    blocks = a.heap.named
    assert a.play([(MALLOC, 1, 4 * MIB, 0)], {}, []) is None
    assert blocks[1].ptr == b.malloc(4 * MIB) == a.memory_snapshot()[0]["address"]
    assert a.memory_stats() == b.memory_stats()


def test_a_segment_mapped_to_the_end_of_its_reserve_has_no_room_to_ask_for() -> None:
    a = ReplayAllocator("400MiB", "expandable_segments:True,expandable_segments_reserve:0.1")
    whole = a.malloc(40 * MIB)
    assert whole is not None
    assert a.heap.live[whole].next is None
    a.free(whole)
    assert row(a, (MALLOC, 1, 30 * MIB, 0)) == (1, [30 * MIB])


def test_it_comes_back_when_the_reason_is_gone() -> None:
    a = ReplayAllocator("1GiB")
    a.malloc(512)
    a.begin_allocate_to_pool(1)
    a.end_allocate_to_pool(1)
    assert takes_rows(a)
    used = a.malloc(512)
    assert used is not None
    a.record_stream(used, 7)
    a.free(used)
    assert not takes_rows(a)  # the next malloc must poll
    a.synchronize()
    a.malloc(512)
    assert takes_rows(a)
    a.set_allocator_settings("garbage_collection_threshold:0.5")
    assert takes_rows(a)
    a.set_per_process_memory_fraction(0.5)
    assert takes_rows(a)  # searches are counted there too


def test_a_witness_and_the_switch_keep_it_off() -> None:
    """Single calls note the work of the allocator, the loop does not."""
    seen: list[bool] = []
    a = ReplayAllocator("1GiB", record_history=True)
    assert takes_rows(a)
    a.witness(lambda: seen.append(takes_rows(a)))
    assert seen == [False]
    assert not takes_rows(ReplayAllocator("1GiB", fast_path=False))


@pytest.mark.parametrize("torch", RELEASES)
def test_expandable_segments_of_a_device_without_end_are_taken(torch: str) -> None:
    """A reservation for an unlimited device must not need wide keys.

    What-if replays of recordings without a device took the compiled form 18 times longer while each
    segment reserved 9/8 of an exbibyte, because its loop has no wide keys.
    """
    a = ReplayAllocator(
        UNLIMITED_DEVICE, "expandable_segments:True", torch_version=torch, base_address=7 << 44
    )
    for stream in range(5):
        a.malloc(MIB, stream)
        a.malloc(12 * MIB, stream)
    assert takes_rows(a)
    a.check()


def test_spare_objects_are_bounded() -> None:
    """Merges that each drop an object do not collect them without limit."""
    ops: list[Op] = [["a", name, 512, 0] for name in range(MAX_SPARE * 2)]
    frees: list[Op] = [["f", op[1]] for op in ops]
    fast, slow = both(Script(ops + frees, 64 * GIB, "", "bump"), "2.15")
    assert len(fast.allocator.heap.spare) == MAX_SPARE
    assert fast.state() == slow.state()


@pytest.mark.parametrize("size", [0, -5, 1 << 41, 1 << 64])
@pytest.mark.parametrize("conf", ["", "roundup_power2_divisions:4"])
def test_a_row_leaves_what_is_no_request_or_finds_no_block(conf: str, size: int) -> None:
    """Such a step is returned to the caller without any effect."""
    a = ReplayAllocator("1GiB", conf)
    a.malloc(600)
    moved: list[int] = []
    left = a.play([(MALLOC, 1, 512, 0), (MALLOC, 2, size, 0)], {}, moved)
    assert left == (MALLOC, 2, size, 0)
    assert moved == [512]
    assert 2 not in a.named_blocks


@pytest.mark.parametrize("divisions", [0, 1, 4])
def test_rounded_sizes_are_those_of_the_rule_and_bounded(divisions: int) -> None:
    config = AllocatorConfig(RELEASES["2.15"], roundup_power2_divisions=(divisions,) * 16)
    rounded = RoundedSizes(config)
    for size in range(1, 3 * MAX_KEPT, 2):
        assert rounded[size] == config.round_size(size)
    assert len(rounded) == MAX_KEPT
    assert rounded[3 * MAX_KEPT + 1] == config.round_size(3 * MAX_KEPT + 1)


def test_a_block_that_has_a_name_is_told_like_any_other() -> None:
    """Its address does not identify it until the name is taken back."""
    a = ReplayAllocator("1GiB")
    ptr = a.malloc(1000)
    assert ptr is not None
    before = a.memory_snapshot(), a.memory_stats()
    block = a.give_name(ptr, 7)
    assert (a.heap.live, a.heap.named) == ({}, {7: block})
    assert (a.memory_snapshot(), a.memory_stats()) == before
    assert a.heap.allocated_at(ptr) is block
    a.check()
    with pytest.raises(ValueError, match="invalid device pointer: 0x0 is not allocated"):
        a.free(ptr)
    assert a.take_name(8) is None
    assert a.take_name(7) == ptr
    assert (a.heap.live, a.heap.named) == ({ptr: block}, {})
    assert a.heap.allocated_at(ptr) is block
    a.free(ptr)
    assert a.heap.allocated_at(ptr) is None


def test_a_block_that_grows_moves_back_among_the_free_ones() -> None:
    """Past the blocks that are smaller than it is now, if there are any."""
    a, b = (ReplayAllocator("1GiB", fast_path=fast) for fast in (True, False))
    for one in (a, b):
        held = [one.malloc(MIB * size // 4) for size in (1, 1, 1, 3, 1)]
        for number, ptr in enumerate(held):
            assert ptr is not None
            one.give_name(ptr, number)
    frees = [(FREE, number, 0, 0) for number in (3, 0, 1, 4, 2)]
    sizes = []
    for step in frees:
        assert a.play([step], {}, []) is None
        b.free(b.take_name(step[1]))
        sizes.append([block.size * 4 // MIB for block in a.heap.small])
        assert sizes[-1] == [block.size * 4 // MIB for block in b.heap.small]
        a.check()
    assert sizes == [[1, 3], [1, 1, 3], [1, 2, 3], [2, 5], [8]]
    assert a.memory_stats() == b.memory_stats()
