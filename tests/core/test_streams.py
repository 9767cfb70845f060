"""Frees that wait for other streams (semantics 2.1, 2.3, 2.4)."""

from __future__ import annotations

import pytest

from allocsim.core import RELEASES, CachingAllocator
from allocsim.errors import OutOfMemoryError
from allocsim.units import MIB

from .conftest import Make, held

OTHER, THIRD = 4096, 8192


def actions(a: CachingAllocator) -> list[str]:
    return [entry.action for entry in a.take_history()]


def test_a_free_without_other_streams_is_done_at_once(make: Make) -> None:
    a = make()
    a.free(a.malloc(1000))
    assert actions(a) == ["segment_alloc", "alloc", "free_requested", "free_completed"]


def test_recording_the_blocks_own_stream_is_ignored(make: Make) -> None:
    a = make()
    ptr = held(a, 1000, stream=OTHER)
    a.record_stream(ptr, OTHER)
    a.free(ptr)
    assert actions(a)[-1] == "free_completed"


def test_a_free_waits_for_the_stream_and_the_next_malloc(make: Make) -> None:
    a = make()
    ptr = held(a, 1000)
    a.record_stream(ptr, OTHER)
    a.free(ptr)
    stats = a.memory_stats()
    assert stats["allocated_bytes.all.current"] == 0
    assert stats["active_bytes.all.current"] == 1024
    assert stats["requested_bytes.all.current"] == 1000
    [segment] = a.memory_snapshot()
    assert segment["blocks"][0]["state"] == "active_pending_free"
    assert segment["active_size"] == 1024
    assert segment["allocated_size"] == 0
    a.synchronize(OTHER)
    assert a.memory_snapshot() == [segment]  # the stream has passed, the allocator has not polled
    actions(a)
    assert a.malloc(1000) == ptr  # the completion makes this very malloc a hit
    assert actions(a) == ["free_completed", "alloc"]
    a.check()


def test_a_malloc_polls_but_a_free_does_not(make: Make) -> None:
    a = make()
    first, second = held(a, 1000), held(a, 1000)
    a.record_stream(first, OTHER)
    a.free(first)
    a.synchronize()
    actions(a)
    a.free(second)
    assert actions(a) == ["free_requested", "free_completed"]
    a.malloc(100, stream=THIRD)
    assert actions(a)[0] == "free_completed"


def test_events_are_recorded_at_the_free_not_at_record_stream(make: Make) -> None:
    a = make()
    ptr = held(a, 1000)
    a.record_stream(ptr, OTHER)
    a.synchronize(OTHER)  # everything so far is done, but the event comes later
    a.free(ptr)
    assert a.malloc(1000) == 1024


def test_each_recorded_stream_is_waited_for(make: Make) -> None:
    a = make()
    ptr = held(a, 1000)
    for stream in (OTHER, THIRD, OTHER):
        a.record_stream(ptr, stream)
    a.free(ptr)
    a.synchronize(OTHER)
    assert a.malloc(1000) != ptr
    a.synchronize(THIRD)
    assert a.malloc(1000) == ptr


def test_a_stream_is_polled_up_to_its_first_event_that_has_not_passed(make: Make) -> None:
    a = make()
    ptrs = [held(a, 1000) for _ in range(2)]
    for ptr in ptrs:
        a.record_stream(ptr, OTHER)
    a.free(ptrs[0])
    a.synchronize(OTHER)
    a.free(ptrs[1])
    a.malloc(1000, stream=OTHER)
    states = [block["state"] for block in a.memory_snapshot()[0]["blocks"]]
    assert states == ["inactive", "active_pending_free", "inactive"]


def test_pending_neighbours_do_not_merge(make: Make) -> None:
    a = make()
    ptrs = [held(a, 512) for _ in range(3)]
    a.record_stream(ptrs[1], OTHER)
    a.free(ptrs[1])
    a.free(ptrs[0])
    a.free(ptrs[2])
    assert [block["size"] for block in a.memory_snapshot()[0]["blocks"]] == [
        512,
        512,
        2 * MIB - 1024,
    ]
    a.synchronize()
    a.malloc(512, stream=OTHER)
    assert [block["size"] for block in a.memory_snapshot()[0]["blocks"]] == [2 * MIB]


def test_empty_cache_waits_for_every_stream(make: Make) -> None:
    a = make()
    ptr = held(a, 1000)
    a.record_stream(ptr, OTHER)
    a.free(ptr)
    actions(a)
    a.empty_cache()
    assert actions(a) == ["free_completed", "segment_free"]
    assert a.memory_stats()["num_sync_all_streams"] == 1
    assert a.reserved_bytes == 0


@pytest.mark.parametrize("torch", RELEASES)
def test_oversize_allocations_end_when_the_free_is_asked_for(make: Make, torch: str) -> None:
    a = make(torch_version=torch, conf="max_split_size_mb:21")
    ptr = held(a, 30 * MIB)
    a.record_stream(ptr, OTHER)
    a.free(ptr)
    stats = a.memory_stats()
    assert stats["oversize_allocations.current"] == 0
    assert stats["oversize_allocations.freed"] == 1
    assert stats["active.all.current"] == 1


def test_streams_are_polled_in_hash_order_whatever_came_first(make: Make) -> None:
    """Streams 0, 4096, ... in the order of their slots among four buckets and more."""
    orders = []
    for streams in ([1, 2, 3], [3, 2, 1]):
        a = make()
        ptrs = {stream: held(a, 512) for stream in (1, 2, 3)}
        for stream in streams:
            a.record_stream(ptrs[stream], stream * 4096)
            a.free(ptrs[stream])
        a.synchronize()
        actions(a)
        a.malloc(2048)
        completed = [e for e in a.take_history() if e.action == "free_completed"]
        orders.append([e.address for e in completed])
    assert sorted(orders[0]) == [0, 512, 1024]
    assert orders[0] == orders[1]


def test_a_told_free_waits_until_it_is_told(make: Make) -> None:
    """For replays: completion as recorded, independent of streams."""
    a = make()
    ptr = held(a, 1000)
    free = a.request_free(ptr)
    a.synchronize()
    assert a.malloc(1000) != ptr
    assert a.complete_free(free)
    assert not a.complete_free(free)
    assert a.malloc(1000) == ptr
    again = a.request_free(ptr)
    a.empty_cache()  # waits for it as for any other
    assert not a.complete_free(again)
    a.check()


def test_a_told_free_is_not_that_of_the_next_block_in_its_place(make: Make) -> None:
    """Neither the address nor the object identifies it: both are reused."""
    a = make("26MiB")
    _, ptr, _ = held(a, 4 * MIB), held(a, 8 * MIB), held(a, 4 * MIB)
    block = a.heap.live[ptr]
    first = a.request_free(ptr)
    with pytest.raises(OutOfMemoryError):
        a.malloc(30 * MIB)  # which waits for it
    assert held(a, 8 * MIB) == ptr
    assert a.heap.live[ptr] is block
    second = a.request_free(ptr)
    assert not a.complete_free(first)
    assert list(a.heap.pending) == [ptr]
    assert a.complete_free(second)
    a.check()


# -- requested frees, and streams recorded in scopes -------------------------------------------


def test_a_told_free_is_pending_meanwhile(make: Make) -> None:
    a = make()
    a.request_free(held(a, 3 * MIB))
    states = [block["state"] for segment in a.memory_snapshot() for block in segment["blocks"]]
    assert states.count("active_pending_free") == 1
    assert a.memory_stats()["active.all.current"] == 1
    assert a.memory_stats()["allocation.all.current"] == 0
    a.check()


def test_emptying_the_cache_completes_what_was_never_told(make: Make) -> None:
    a = make()
    free = a.request_free(held(a, 3 * MIB))
    a.empty_cache()
    assert a.reserved_bytes == 0
    assert not a.complete_free(free)


@pytest.mark.parametrize("torch", ["2.4", "2.8"])
def test_a_scope_forgets_only_the_streams_recorded_in_it(make: Make, torch: str) -> None:
    """5.5: streams recorded outside are still waited for."""
    a = make(torch_version=torch)
    ptr = held(a, 3 * MIB)
    a.record_stream(ptr, 4096)
    a.begin_allocate_to_pool(1)
    a.record_stream(ptr, 8192)
    a.free(ptr)
    a.end_allocate_to_pool(1)
    a.malloc(100)
    assert a.memory_stats()["active.all.current"] == 2
    a.synchronize(8192)
    a.malloc(100)
    assert a.memory_stats()["active.all.current"] == 3
    a.synchronize(4096)
    a.malloc(100)
    assert a.memory_stats()["active.all.current"] == 3
    a.check()
