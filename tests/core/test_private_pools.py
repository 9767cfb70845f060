"""Private pools: identity, scopes, deferred frees, use_on_oom (semantics 5, 12.2, 12.3)."""

from __future__ import annotations

import pytest

from allocsim import OutOfMemoryError
from allocsim.core import RELEASES, ReplayAllocator
from allocsim.errors import UndefinedBehaviorError, UpstreamAssertionError
from allocsim.units import MIB

from .conftest import Make, held

ORDER = list(RELEASES)
BY_THREAD = ORDER[ORDER.index("2.3") :]
CAPTURING = [t for t in ORDER if ORDER.index(t) < ORDER.index("2.13")]
NO_SPLIT = ORDER[ORDER.index("2.10") :]
OVERFLOW = SINCE_2_8 = ORDER[ORDER.index("2.8") :]
FIRST_OVERFLOW = ORDER[ORDER.index("2.11") :]
MEMPOOL = ORDER[ORDER.index("2.6") :]


def pools(a: ReplayAllocator) -> list[int]:
    """Return the pool of each segment, in address order."""
    return [segment["segment_pool_id"][1] for segment in a.memory_snapshot()]


def actions(a: ReplayAllocator) -> list[str]:
    return [entry.action for entry in a.take_history()]


@pytest.mark.parametrize("torch", ORDER)
def test_requests_inside_a_scope_go_to_its_pool_and_frees_go_home(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    outside = a.malloc(1000)
    a.begin_allocate_to_pool(1)
    inside = a.malloc(1000)
    assert inside == 2 * MIB  # it cannot use the free rest of the default pool
    a.free(outside)
    assert a.malloc(1000) == inside + 1024
    a.end_allocate_to_pool(1)
    a.free(inside)
    assert a.malloc(500) == outside
    assert pools(a) == [0, 1]
    a.check()


@pytest.mark.parametrize("torch", ["2.1", "2.2"])
def test_up_to_2_2_a_scope_takes_one_stream(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    a.begin_allocate_to_pool(1, stream=4096)
    a.malloc(1000)
    a.malloc(1000, stream=4096)
    assert pools(a) == [0, 1]


@pytest.mark.parametrize("torch", BY_THREAD)
def test_of_nested_scopes_the_oldest_wins_up_to_2_9(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    a.begin_allocate_to_pool(1)
    a.begin_allocate_to_pool(2)
    a.malloc(1000)
    newest = torch in NO_SPLIT
    assert pools(a) == [2 if newest else 1]
    a.end_allocate_to_pool(2 if newest else 1)
    a.malloc(1000)
    assert sorted(pools(a)) == [1, 2]


def one_use(a: ReplayAllocator, pool: int, size: int) -> int:
    """Return a block of a pool with one use, as by its MemPool."""
    a.begin_allocate_to_pool(pool)
    ptr = held(a, size)
    a.end_allocate_to_pool(pool)
    return ptr


@pytest.mark.parametrize("torch", MEMPOOL)
def test_deleting_a_mempool_gives_back_its_own_memory_only(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    outside = held(a, 40 * MIB)
    a.free(outside)
    inside, other = one_use(a, 1, 30 * MIB), one_use(a, 2, 50 * MIB)
    a.free(inside)
    a.free(other)
    a.release_pool(2)
    a.take_history()
    a.delete_mempool(1)
    (entry,) = a.take_history()
    assert (entry.action, entry.address, entry.size) == ("segment_free", inside, 30 * MIB)
    assert a.malloc(40 * MIB) == outside
    assert pools(a) == [0, 2]
    assert a.pool_use_count(1) == 0
    a.begin_allocate_to_pool(1)  # forgotten, so that the id may be used again
    a.check()


@pytest.mark.parametrize("torch", MEMPOOL)
def test_a_mempool_with_live_blocks_is_emptied_later(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    ptr = one_use(a, 1, 30 * MIB)
    a.delete_mempool(1)
    a.free(ptr)
    assert a.reserved_bytes == 30 * MIB
    a.empty_cache()
    assert a.reserved_bytes == 0


@pytest.mark.parametrize("torch", MEMPOOL)
def test_emptying_a_pool_waits_for_its_own_events_only(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    outside, inside = held(a, 40 * MIB), one_use(a, 1, 30 * MIB)
    for ptr in (outside, inside):
        a.record_stream(ptr, 4096)
        a.free(ptr)
    a.take_history()
    a.delete_mempool(1)
    assert actions(a) == ["free_completed", "segment_free"]
    assert a.memory_stats()["num_sync_all_streams"] == 1
    a.malloc(1000)  # its event preceded the other on that stream, and so has passed
    assert actions(a)[0] == "free_completed"


@pytest.mark.parametrize("torch", SINCE_2_8)
def test_a_pool_is_emptied_by_itself_since_2_8(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    a.free(held(a, 40 * MIB))
    a.free(one_use(a, 1, 30 * MIB))
    for pool in (1, 2):  # in use, and unknown
        a.empty_cache(pool)
    assert (a.reserved_bytes, a.memory_stats()["num_sync_all_streams"]) == (70 * MIB, 0)
    a.release_pool(1)
    a.empty_cache(1)
    assert (a.reserved_bytes, a.memory_stats()["num_sync_all_streams"]) == (40 * MIB, 1)
    a.empty_cache(0)
    assert a.reserved_bytes == 0


@pytest.mark.parametrize("torch", ["2.1", "2.5", "2.7"])
def test_what_no_release_had_yet(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    with pytest.raises(ValueError, match="empty_cache takes no pool in release"):
        a.empty_cache(1)
    if torch not in MEMPOOL:
        with pytest.raises(ValueError, match="a MemPool holds no pool in release"):
            a.delete_mempool(1)


@pytest.mark.parametrize("torch", MEMPOOL)
def test_a_mempool_is_the_last_user_up_to_2_9(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    for _ in range(2):
        ptr = one_use(a, 1, 30 * MIB)
        a.free(ptr)
    if torch in NO_SPLIT:
        a.delete_mempool(1)
        assert (a.pool_use_count(1), a.reserved_bytes) == (1, 30 * MIB)
        return
    with pytest.raises(UpstreamAssertionError, match=r"the MemPool of \(0, 1\) is not its only"):
        a.delete_mempool(1)
    assert a.pool_use_count(1) == 2


@pytest.mark.parametrize("torch", MEMPOOL)
def test_deleting_a_mempool_inside_a_scope(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    a.free(one_use(a, 1, 30 * MIB))
    a.begin_allocate_to_pool(2)
    if torch in CAPTURING:
        with pytest.raises(UpstreamAssertionError, match="waited for inside a scope"):
            a.delete_mempool(1)
        assert a.memory_stats()["num_sync_all_streams"] == 1
        return
    a.delete_mempool(1)
    assert a.reserved_bytes == 0


@pytest.mark.parametrize("torch", OVERFLOW)
def test_the_mark_goes_with_the_mempool_since_2_11(make: Make, torch: str) -> None:
    """While the pool lives on, 2.8 to 2.10 stop because the mark remains."""
    a = make(torch_version=torch, device_memory=50 * MIB)
    a.begin_allocate_to_pool(1, use_on_oom=True)
    held(a, 30 * MIB)
    a.end_allocate_to_pool(1)
    a.delete_mempool(1)
    expected = OutOfMemoryError if torch in FIRST_OVERFLOW else UpstreamAssertionError
    with pytest.raises(expected):
        a.malloc(40 * MIB)


@pytest.mark.parametrize("torch", BY_THREAD)
def test_emptying_the_cache_takes_up_what_a_scope_put_off(make: Make, torch: str) -> None:
    """5.5: without a malloc in between, which would have completed them."""
    a = make(torch_version=torch)
    a.begin_allocate_to_pool(1)
    ptr = held(a, 30 * MIB)
    a.record_stream(ptr, 4096)
    a.free(ptr)
    a.end_allocate_to_pool(1)
    a.synchronize()
    a.release_pool(1)
    assert a.memory_stats()["active.all.current"] == 1
    a.take_history()
    a.empty_cache()
    assert actions(a) == ["free_completed", "segment_free"]
    assert a.memory_stats()["active.all.current"] == 0


@pytest.mark.parametrize("torch", BY_THREAD)
def test_a_pool_lives_until_it_is_released_and_emptied(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    for _ in range(2):
        a.begin_allocate_to_pool(1)
        ptr = held(a, 3 * MIB)
        a.end_allocate_to_pool(1)
        a.free(ptr)
    a.empty_cache()
    a.release_pool(1)
    a.empty_cache()
    assert a.reserved_bytes == 20 * MIB  # begun twice, released once
    a.release_pool(1)
    assert a.malloc(3 * MIB) != ptr  # unusable by anyone, though free
    assert pools(a) == [1, 0]
    a.empty_cache()
    assert pools(a) == [0]
    a.begin_allocate_to_pool(1)  # forgotten: this is a new one
    a.malloc(100)
    assert 1 in pools(a)
    a.check()


@pytest.mark.parametrize("torch", BY_THREAD)
def test_freeable_pools_go_small_before_large_in_hash_order(make: Make, torch: str) -> None:
    """In the slots of pools 1, 2, 3 among eight and more (12.2); both halves of each."""
    a = make(torch_version=torch)
    for pool in (1, 2, 3):
        a.begin_allocate_to_pool(pool)
        held = [a.malloc(3 * MIB), a.malloc(100)]
        a.end_allocate_to_pool(pool)
        for ptr in held:
            a.free(ptr)
        a.release_pool(pool)
    a.take_history()
    a.empty_cache()
    freed = [entry.size // MIB for entry in a.take_history()]
    assert freed == [2, 20] * 3
    assert a.reserved_bytes == 0


@pytest.mark.parametrize("torch", BY_THREAD)
def test_what_upstream_asserts_on(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    with pytest.raises(UpstreamAssertionError, match=r"pool \(0, 1\) is ended, but no scope"):
        a.end_allocate_to_pool(1)
    with pytest.raises(UpstreamAssertionError, match=r"pool \(0, 1\) is released, but nothing"):
        a.release_pool(1)
    a.begin_allocate_to_pool(1)
    with pytest.raises(UpstreamAssertionError, match="while a scope of it is open; its use count"):
        a.begin_allocate_to_pool(1)
    a.malloc(100)
    a.end_allocate_to_pool(1)
    a.release_pool(1)
    a.release_pool(1)  # the refused begin counted a use
    with pytest.raises(UpstreamAssertionError, match="after its last release"):
        a.begin_allocate_to_pool(1)
    a.check()


@pytest.mark.parametrize("torch", OVERFLOW)
def test_a_scope_that_outlives_its_pool_asserts_at_the_next_request(make: Make, torch: str) -> None:
    """Observed on 2.8.0 to 2.15.0; earlier, nothing empties the pool inside the scope."""
    a = make(torch_version=torch)
    a.begin_allocate_to_pool(1)
    a.release_pool(1)
    a.empty_cache()
    with pytest.raises(UpstreamAssertionError, match="outlived the pool"):
        a.malloc(100)
    a.check()
    a.end_allocate_to_pool(1)
    assert a.malloc(100) == 0


# -- in capture ----------------------------------------------------------------------------


@pytest.mark.parametrize("torch", BY_THREAD)
def test_empty_cache_inside_a_scope(make: Make, torch: str) -> None:
    """Asserts up to 2.7, skips the default pools up to 2.12, releases all from 2.13 on."""
    a = make(torch_version=torch)
    a.free(a.malloc(3 * MIB))
    a.begin_allocate_to_pool(2)
    a.free(a.malloc(100))
    a.end_allocate_to_pool(2)
    a.release_pool(2)
    a.begin_allocate_to_pool(1)
    a.take_history()
    if ORDER.index(torch) < ORDER.index("2.8"):
        with pytest.raises(UpstreamAssertionError, match="empty_cache inside a pool scope"):
            a.empty_cache()
        assert actions(a) == []
        assert a.memory_stats()["num_sync_all_streams"] == 1
        return
    a.empty_cache()
    released = [entry.size // MIB for entry in a.take_history()]
    assert released == ([2] if torch in CAPTURING else [20, 2])
    assert a.memory_stats()["num_sync_all_streams"] == (0 if torch in CAPTURING else 1)


@pytest.mark.parametrize("torch", BY_THREAD)
def test_inside_a_scope_nothing_completes_and_nothing_is_retried_up_to_2_12(
    make: Make, torch: str
) -> None:
    a = make("40MiB", torch_version=torch)
    cached = a.malloc(20 * MIB)
    waits = held(a, 100)
    a.record_stream(waits, 4096)
    a.free(waits)
    a.free(cached)
    a.synchronize()
    a.begin_allocate_to_pool(1)
    a.take_history()
    if torch not in CAPTURING:
        a.malloc(30 * MIB)
        assert actions(a) == [
            "free_completed",
            "segment_free",
            "segment_free",
            "segment_alloc",
            "alloc",
        ]
        assert a.memory_stats()["num_alloc_retries"] == 1
        return
    with pytest.raises(OutOfMemoryError):
        a.malloc(30 * MIB)
    assert actions(a) == ["oom"]
    assert a.memory_stats()["num_alloc_retries"] == 0
    a.end_allocate_to_pool(1)
    a.malloc(30 * MIB)
    assert actions(a)[0] == "free_completed"


@pytest.mark.parametrize("torch", BY_THREAD)
def test_a_free_inside_a_scope_is_put_off_up_to_2_12(make: Make, torch: str) -> None:
    """A stream finishes only recorded events, and that of a deferred block comes later."""
    a = make(torch_version=torch)
    ptr = held(a, 100)
    a.record_stream(ptr, 4096)
    a.begin_allocate_to_pool(1)
    a.free(ptr)
    a.end_allocate_to_pool(1)
    a.synchronize()
    a.take_history()
    a.malloc(100, stream=4096)
    assert ("free_completed" in actions(a)) is (torch not in CAPTURING)
    a.synchronize()
    a.malloc(100, stream=4096)
    assert ("free_completed" in actions(a)) is (torch in CAPTURING)


@pytest.mark.parametrize("torch", BY_THREAD)
def test_streams_recorded_in_a_scope_are_forgotten_since_2_4(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    ptr = held(a, 100)
    a.begin_allocate_to_pool(1)
    a.record_stream(ptr, 4096)
    a.free(ptr)
    a.end_allocate_to_pool(1)
    a.take_history()
    a.malloc(100, stream=4096)  # no stream has finished anything
    assert ("free_completed" in actions(a)) is (torch in CAPTURING and torch != "2.3")


@pytest.mark.parametrize("torch", BY_THREAD)
def test_what_was_recorded_in_a_scope_stays_with_the_object(make: Make, torch: str) -> None:
    """The script of 12.3b."""
    a = make(torch_version=torch)
    first = held(a, 10_485_760)
    a.begin_allocate_to_pool(1)
    a.record_stream(first, 4096)
    a.end_allocate_to_pool(1)
    a.free(first)
    a.synchronize()
    a.malloc(100)
    again = held(a, 10_485_760)
    assert again == first
    a.record_stream(again, 4096)
    a.begin_allocate_to_pool(2)
    a.free(again)
    a.end_allocate_to_pool(2)
    a.take_history()
    a.malloc(100)
    remembers = torch in CAPTURING and torch != "2.3"
    assert ("free_completed" in actions(a)) is remembers


# -- marks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("torch", NO_SPLIT)
def test_blocks_of_a_no_split_pool_are_never_split(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    a.begin_allocate_to_pool(1, no_split=True)
    a.malloc(100)
    assert a.memory_stats()["allocated_bytes.all.current"] == 2 * MIB
    a.malloc(3 * MIB)
    assert a.memory_stats()["allocated_bytes.all.current"] == 22 * MIB


@pytest.mark.parametrize("torch", NO_SPLIT)
def test_the_no_split_mark_ends_with_the_pool_since_2_14_only(make: Make, torch: str) -> None:
    """Observed on 2.10.0 to 2.15.0: before, even a new pool of the same id has it."""
    a = make(torch_version=torch)
    a.begin_allocate_to_pool(6, no_split=True)
    a.end_allocate_to_pool(6)
    a.release_pool(6)
    a.empty_cache()
    a.begin_allocate_to_pool(6)
    a.malloc(MIB)
    ends = ORDER.index(torch) >= ORDER.index("2.14")
    assert a.memory_stats()["allocated_bytes.all.current"] == (MIB if ends else 2 * MIB)


@pytest.mark.parametrize("torch", ORDER)
def test_marks_that_a_release_lacks_are_refused(make: Make, torch: str) -> None:
    for mark, known in (("no_split", NO_SPLIT), ("use_on_oom", OVERFLOW)):
        if torch in known:
            continue
        a = make(torch_version=torch)
        with pytest.raises(ValueError, match=f"{mark} does not exist in release {torch}"):
            a.begin_allocate_to_pool(1, **{mark: True})
        assert a.malloc(100) == 0
        assert pools(a) == [0]


@pytest.mark.parametrize("torch", OVERFLOW)
@pytest.mark.parametrize(
    ("marked", "served"),
    [((5, 9, 2), (5, 2, 9)), ((2, 5), (2, 5)), ((5, 2), (5, 2)), ((9, 2), (2, 9))],
)
def test_overflow_pools_are_asked_in_hash_order(
    make: Make, torch: str, marked: tuple[int, ...], served: tuple[int, ...]
) -> None:
    """Observed on 2.8.0 to 2.15.0: a hash table, where 2 and 5 share a slot."""
    a = make(len(marked) * 10 * MIB, torch_version=torch)
    places = {}
    for pool in marked:
        a.begin_allocate_to_pool(pool, use_on_oom=True)
        places[pool] = a.malloc(10 * MIB)
        a.end_allocate_to_pool(pool)
    for ptr in places.values():
        a.free(ptr)
    assert [a.malloc(10 * MIB) for _ in marked] == [places[pool] for pool in served]
    a.check()


@pytest.mark.parametrize("torch", OVERFLOW)
def test_overflow_since_2_10_searches_as_if_expandable_segments_were_off(
    make: Make, torch: str
) -> None:
    """Observed on 2.8.0 to 2.15.0."""
    a = make("40MiB", torch_version=torch, conf="expandable_segments:True")
    a.begin_allocate_to_pool(1, use_on_oom=True)
    first = held(a, 20 * MIB)
    a.malloc(20 * MIB)
    a.end_allocate_to_pool(1)
    a.free(first)
    if torch in NO_SPLIT:
        with pytest.raises(OutOfMemoryError):
            a.malloc(4 * MIB)
    else:
        assert a.malloc(4 * MIB) == first


@pytest.mark.parametrize("torch", OVERFLOW)
def test_a_borrowed_ordinary_block_is_split_coarsely_since_2_10(make: Make, torch: str) -> None:
    a = make("40MiB", torch_version=torch)
    a.begin_allocate_to_pool(1, use_on_oom=True)
    first = held(a, 20 * MIB)
    a.malloc(20 * MIB)
    a.end_allocate_to_pool(1)
    a.free(first)
    a.set_allocator_settings("expandable_segments:True")
    assert a.malloc(19 * MIB) == first
    whole = torch in NO_SPLIT
    assert a.memory_stats()["allocated_bytes.all.current"] == (40 if whole else 39) * MIB


@pytest.mark.parametrize("torch", [t for t in OVERFLOW if t not in ("2.8", "2.9", "2.10")])
@pytest.mark.parametrize(("released", "is_reached"), [(5, True), (2, False)])
def test_a_released_overflow_pool_asserts_only_if_it_is_reached(
    make: Make, torch: str, released: int, is_reached: bool
) -> None:
    """Observed on 2.11.0, 2.13.0, 2.15.0: they are searched one by one, up to the first hit."""
    a = make("40MiB", torch_version=torch)
    held = []
    for pool, size in ((5, 20), (2, 20)):
        a.begin_allocate_to_pool(pool, use_on_oom=True)
        held.append(a.malloc(size * MIB))
        a.end_allocate_to_pool(pool)
    for ptr in held:
        a.free(ptr)
    a.release_pool(released)
    if is_reached:
        with pytest.raises(UpstreamAssertionError):
            a.malloc(10 * MIB)
    else:
        assert a.malloc(10 * MIB) == held[0]
    a.check()


# -- expandable pools ----------------------------------------------------------------------


@pytest.mark.parametrize("torch", ORDER)
def test_pools_are_expandable_since_2_5(make: Make, torch: str) -> None:
    a = make(torch_version=torch, conf="expandable_segments:True")
    a.begin_allocate_to_pool(1)
    a.malloc(3 * MIB)
    [segment] = a.memory_snapshot()
    assert segment["is_expandable"] is (ORDER.index(torch) >= ORDER.index("2.5"))
    assert segment["blocks"][0]["size"] == 3 * MIB


def test_the_counter_may_reach_0_under_live_blocks_and_that_is_refused(make: Make) -> None:
    """12.6: one allocation maps two ranges, and unmapping one of them uses up its count."""
    a = make("1GiB", conf="expandable_segments:True")
    a.begin_allocate_to_pool(1)
    first = held(a, 30 * MIB)
    a.malloc(5 * MIB)
    a.end_allocate_to_pool(1)
    a.free(first)
    a.release_pool(1)
    with pytest.raises(UndefinedBehaviorError, match=r"segment count of pool \(0, 1\) reached 0"):
        a.empty_cache()


# -- expandable pools, whose segment counts need not balance (5.1, 12.6) ------------------------


def test_a_count_below_zero_asserts(make: Make) -> None:
    """One request maps two ranges around a live block; both are unmapped."""
    a = make(conf="expandable_segments:True")
    a.begin_allocate_to_pool(1)
    blocks = [held(a, 20 * MIB) for _ in range(3)]
    a.end_allocate_to_pool(1)
    a.release_pool(1)
    pool = a.private_pools.pools[0, 1]
    pool.segment_count = 1
    a.free(blocks[0])
    a.free(blocks[2])
    with pytest.raises(UpstreamAssertionError, match="segment count of a private pool"):
        a.empty_cache()


@pytest.mark.parametrize("size", [1000, 3 * MIB])
def test_a_pool_that_would_be_forgotten_with_its_blocks_is_refused(make: Make, size: int) -> None:
    a = make(conf="expandable_segments:True")
    a.begin_allocate_to_pool(1)
    kept = held(a, size)
    a.end_allocate_to_pool(1)
    a.release_pool(1)
    a.private_pools.pools[0, 1].segment_count = 0
    with pytest.raises(UndefinedBehaviorError, match=r"reached 0 while it holds memory"):
        a.empty_cache()
    assert kept in a.heap.live


def test_a_pool_forgotten_under_its_own_request_is_refused(make: Make) -> None:
    """Observed: the compiled allocators of 2.13 to 2.15 abort here."""
    a = make("64MiB")
    a.begin_allocate_to_pool(2)
    a.free(held(a, 40 * MIB))
    a.release_pool(2)
    with pytest.raises(UndefinedBehaviorError, match="forgotten under a request"):
        a.malloc(50 * MIB)


# -- effects of the counts -----------------------------------------------------------------


@pytest.mark.parametrize("torch", ORDER[ORDER.index("2.5") :])
@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_each_segment_counts_and_the_last_to_go_takes_the_pool_along(
    make: Make, conf: str, torch: str
) -> None:
    """Observed on 2.5.1 and 2.15.0."""
    a = make(torch_version=torch, conf=conf)
    a.begin_allocate_to_pool(1)
    ptrs = [held(a, 12 * MIB, stream) for stream in (0, 4096)]
    a.end_allocate_to_pool(1)
    for ptr in ptrs:
        a.free(ptr)
    a.release_pool(1)
    a.empty_cache()
    assert a.memory_snapshot() == []
    a.begin_allocate_to_pool(1)  # a new pool: a freeable one would assert
    a.malloc(12 * MIB)
    assert pools(a) == [1]
    a.check()


@pytest.mark.parametrize("torch", OVERFLOW)
def test_a_small_request_borrows_from_the_small_half(make: Make, torch: str) -> None:
    """Observed on 2.8.0, 2.10.0, 2.11.0, 2.15.0."""
    a = make("2MiB", torch_version=torch)
    a.begin_allocate_to_pool(1, use_on_oom=True)
    a.free(a.malloc(100))
    a.end_allocate_to_pool(1)
    assert a.malloc(100) == 0
    assert pools(a) == [1]


@pytest.mark.parametrize("torch", ["2.3", "2.7"])
def test_the_refused_empty_cache_counts_as_one_more(make: Make, torch: str) -> None:
    """Observed on 2.3.1 and 2.7.1."""
    a = make(torch_version=torch)
    a.empty_cache()
    a.begin_allocate_to_pool(1)
    with pytest.raises(UpstreamAssertionError, match="empty_cache inside a pool scope"):
        a.empty_cache()
    assert a.memory_stats()["num_sync_all_streams"] == 2


def test_a_pool_may_be_called_by_its_whole_id(make: Make) -> None:
    """The pool of a graph is (n, 0) (5.1)."""
    a = make()
    a.begin_allocate_to_pool((5, 0))
    a.malloc(100)
    a.end_allocate_to_pool((5, 0))
    assert a.memory_snapshot()[0]["segment_pool_id"] == (5, 0)
    with pytest.raises(UpstreamAssertionError, match=r"pool \(0, 5\) is released"):
        a.release_pool(5)
    a.release_pool((5, 0))


@pytest.mark.parametrize("torch", BY_THREAD)
def test_a_block_may_be_forgotten_in_scope_after_scope(make: Make, torch: str) -> None:
    """Observed on 2.3.1, 2.4.1, 2.8.0, 2.12.0, 2.15.0: each time it is a free block again."""
    a = make(torch_version=torch)
    addresses = []
    for pool in (1, 2):
        ptr = held(a, 10 * MIB)
        addresses.append(ptr)
        a.begin_allocate_to_pool(pool)
        a.record_stream(ptr, 4096)
        a.free(ptr)
        a.end_allocate_to_pool(pool)
        a.malloc(100, stream=4096)
    addresses.append(held(a, 10 * MIB))
    a.take_history()
    a.free(addresses[-1])
    assert actions(a) == ["free_requested", "free_completed"]
    forgets = torch in CAPTURING and torch != "2.3"
    assert addresses == ([0, 0, 0] if forgets else [0, 12 * MIB, 22 * MIB])
    a.check()


# -- texts of undefined behaviour ----------------------------------------------------------


@pytest.mark.parametrize(("size", "is_live"), [(20 * MIB, True), (100, False)])
def test_nothing_of_a_forgotten_pool_may_be_left(make: Make, size: int, is_live: bool) -> None:
    """Only a live block that fills its handles, or only free memory of one half."""
    a = make(conf="expandable_segments:True")
    a.begin_allocate_to_pool(1)
    ptr = held(a, size)
    a.end_allocate_to_pool(1)
    if not is_live:
        a.free(ptr)
    a.release_pool(1)
    pool = a.private_pools.pools[0, 1]
    pool.segment_count = 0
    with pytest.raises(UndefinedBehaviorError) as caught:
        a.private_pools.forget_if_empty(pool)
    assert str(caught.value) == (
        "the segment count of pool (0, 1) reached 0 while it holds memory; PyTorch forgets the "
        "pool with its blocks"
    )
    assert (0, 1) in a.private_pools.pools


def test_the_words_for_a_pool_that_ends_too_early(make: Make) -> None:
    a = make("64MiB")
    a.begin_allocate_to_pool(2)
    a.free(held(a, 40 * MIB))
    a.release_pool(2)
    with pytest.raises(UndefinedBehaviorError) as caught:
        a.malloc(50 * MIB)
    assert str(caught.value) == (
        "pool (0, 2) was released inside its scope and is forgotten under a request; PyTorch goes "
        "on with freed memory"
    )
    a = make(conf="expandable_segments:True")
    a.begin_allocate_to_pool(1)
    a.free(held(a, 20 * MIB))
    a.end_allocate_to_pool(1)
    a.release_pool(1)
    a.private_pools.pools[0, 1].segment_count = -1
    with pytest.raises(UpstreamAssertionError) as asserted:
        a.empty_cache()
    assert str(asserted.value) == "the segment count of a private pool fell below zero"
