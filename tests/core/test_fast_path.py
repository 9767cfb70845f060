"""The fast path changes nothing but the time: every script goes both ways."""

from __future__ import annotations

import random
from typing import Any

import pytest

from allocsim.core import RELEASES, CachingAllocator
from allocsim.core.fast_path import MAX_SPARE
from allocsim.errors import AllocsimError, OutOfMemoryError
from allocsim.phantom.generator import make_script
from allocsim.phantom.script import HANDLE, Script
from allocsim.units import GIB, MIB

ORDER = list(RELEASES)


def both(script: Script, release: str) -> tuple[CachingAllocator, CachingAllocator] | None:
    """An allocator with the fast path and one without; None if neither takes the settings."""
    made = []
    for fast in (True, False):
        try:
            allocator = CachingAllocator(
                script.device_memory,
                script.conf,
                release,
                address_policy=script.address_policy,
                fast_path=fast,
            )
        except AllocsimError:
            continue
        made.append(allocator)
    if not made:
        return None
    fast_one, slow_one = made
    return fast_one, slow_one


def outcome(a: CachingAllocator, op: Any, live: dict[Any, int]) -> object:
    """What one op comes to: an address, nothing, or an error's text."""
    calls: dict[str, Any] = {
        "a": lambda _, size, stream: a.malloc(size, stream * HANDLE),
        "f": lambda name: a.free(live.get(name)),
        "r": lambda name, stream: (
            a.record_stream(live[name], stream * HANDLE) if name in live else None
        ),
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
    except OutOfMemoryError as error:
        return str(error)
    except (AllocsimError, ValueError) as error:
        return type(error).__name__


def scope(a: CachingAllocator, what: str, pool: int, marks: tuple[bool, ...]) -> None:
    if what == "b":
        no_split, use_on_oom = marks or (False, False)
        a.begin_allocate_to_pool(pool, no_split=bool(no_split), use_on_oom=bool(use_on_oom))
    elif what == "e":
        a.end_allocate_to_pool(pool)
    else:
        a.release_pool(pool)


def state(a: CachingAllocator) -> tuple[object, object]:
    a.check()
    return a.memory_stats(), a.segments()


@pytest.mark.parametrize("release", RELEASES)
def test_every_script_ends_the_same_both_ways(release: str) -> None:
    for seed in range(20):
        script = make_script(seed, RELEASES[release])
        if (pair := both(script, release)) is None:
            continue
        live: dict[Any, int] = {}
        for number, op in enumerate(script.ops):
            fast, slow = (outcome(a, op, live) for a in pair)
            assert fast == slow, f"seed {seed}, op {number} {list(op)}"
            if fast == "UndefinedBehaviorError":
                break
            if op[0] == "a" and isinstance(fast, int):
                live[op[1]] = fast
            elif op[0] == "f":
                live.pop(op[1], None)
        else:
            assert state(pair[0]) == state(pair[1]), f"seed {seed}"


@pytest.mark.parametrize("release", [r for r in RELEASES if r != "2.12"])
def test_plain_calls_take_it(release: str) -> None:
    """A hit and its free take it in every release but 2.12, which numbers every object."""
    a = CachingAllocator("1GiB", torch_version=release)
    assert a.fast_malloc(1000, 0) is None  # nothing is cached yet
    first = a.malloc(1000)
    found = a.fast_malloc(1000, 0)
    assert found is not None
    assert (found.ptr, found.size, found.requested_size) == (1024, 1024, 1000)
    assert a.fast_free(found)
    assert a.heap.live.keys() == {first}


def test_an_object_is_used_again() -> None:
    a = CachingAllocator("1GiB")
    a.malloc(512)
    block = a.fast_malloc(512, 0)
    assert block is not None
    following = a.fast_malloc(512, 0)
    assert following is not None
    rest = following.next
    assert a.fast_free(block)
    assert a.fast_free(following)  # absorbs both neighbours, which nobody holds any more
    assert a.fast_malloc(512, 0) is rest
    assert a.fast_malloc(512, 0) is block
    state(a)


@pytest.mark.parametrize("told_first", [True, False])
def test_an_object_that_someone_may_still_hold_is_not(told_first: bool) -> None:
    """A free that waits to be told is completed by object, so that object stays what it is."""
    a = CachingAllocator("1GiB")
    a.malloc(512)
    pair = [a.malloc(512), a.malloc(512)]
    told, other = pair if told_first else reversed(pair)
    a.malloc(512)
    assert told is not None
    block = a.heap.live[told]
    a.request_free(told)
    a.complete_free(block)
    a.free(other)
    assert block.key == 0  # it was absorbed
    assert block not in [a.fast_malloc(512, 0) for _ in range(3)]
    assert not a.complete_free(block)


def test_garbage_collection_knows_the_ages_of_what_went_this_way() -> None:
    """A threshold that is set later counts from when a block became free."""
    a, b = (CachingAllocator("100MiB", fast_path=fast) for fast in (True, False))
    for one in (a, b):
        kept = one.malloc(20 * MIB)
        assert kept is not None
        old = [one.malloc(20 * MIB), one.malloc(20 * MIB)]
        for ptr in old:
            one.free(ptr)
        one.free(one.malloc(12 * MIB))  # a split, whose tail and whole become free again
        one.set_allocator_settings("garbage_collection_threshold:0.5")
        one.set_per_process_memory_fraction(0.9)
        one.malloc(25 * MIB)
    assert state(a) == state(b)
    assert a.memory_stats()["num_device_free"] > 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.begin_allocate_to_pool(1),
        lambda a: a.set_allocator_settings("max_split_size_mb:64"),
        lambda a: a.set_allocator_settings("expandable_segments:True"),
        lambda a: a.set_allocator_settings("roundup_power2_divisions:4"),
    ],
)
def test_what_needs_more_than_the_plain_rules_declines(spoil: Any) -> None:
    a = CachingAllocator("1GiB")
    ptr = a.malloc(512)
    assert a.heap.is_plain
    spoil(a)
    assert a.fast_malloc(512, 0) is None
    assert ptr is not None
    assert not a.fast_free(a.heap.live[ptr])
    assert a.heap.live.keys() == {ptr}


def test_it_comes_back_when_the_reason_is_gone() -> None:
    a = CachingAllocator("1GiB")
    a.malloc(512)
    a.begin_allocate_to_pool(1)
    a.end_allocate_to_pool(1)
    assert a.heap.is_plain
    used = a.malloc(512)
    assert used is not None
    a.record_stream(used, 7)
    a.free(used)
    assert not a.heap.is_plain  # the next malloc must poll
    a.synchronize()
    a.malloc(512)
    assert a.heap.is_plain
    a.set_allocator_settings("garbage_collection_threshold:0.5")
    assert a.heap.is_plain
    a.set_per_process_memory_fraction(0.5)
    assert not a.heap.is_plain


def test_history_and_the_switch_keep_it_off() -> None:
    assert not CachingAllocator("1GiB", record_history=True).heap.is_plain
    assert not CachingAllocator("1GiB", fast_path=False).heap.is_plain
    assert not CachingAllocator("1GiB", torch_version="2.12").heap.is_plain


def test_spare_objects_are_bounded() -> None:
    """Frees that each leave an object behind do not gather them without end."""
    a, b = (CachingAllocator(64 * GIB, fast_path=fast) for fast in (True, False))
    rng = random.Random(5)
    ptrs = []
    for _ in range(MAX_SPARE * 2):
        size = rng.choice((512, 1024, 3 * MIB))
        ptr = a.malloc(size)
        assert ptr == b.malloc(size)
        ptrs.append(ptr)
    rng.shuffle(ptrs)
    for ptr in ptrs:
        a.free(ptr)
        b.free(ptr)
    assert state(a) == state(b)
