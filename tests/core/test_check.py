"""`check` finds each of its numbered invariants when it is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from allocsim.core import CachingAllocator
from allocsim.core.block import Block
from allocsim.errors import InvariantError
from allocsim.units import MIB

REST = 2 * MIB - 2560
"""Bytes of the small segment left by the first three requests."""


@pytest.fixture
def a() -> CachingAllocator:
    """Return blocks of 1000 and 512 bytes, 600 pending, a segment of 30 MiB, and a free rest."""
    a = CachingAllocator("1GiB", torch_version="2.15")
    for size in (1000, 512, 600):
        a.malloc(size)
    a.malloc(30 * MIB)
    a.record_stream(1536, 4096)
    a.free(1536)
    a.check()
    return a


def live(a: CachingAllocator, address: int) -> Block:
    return a.heap.live[address]


def gap(a: CachingAllocator) -> None:
    live(a, 1024).size -= 512
    live(a, 1024).requested_size = 0


def wrong_prev(a: CachingAllocator) -> None:
    following = live(a, 0).next
    assert following is not None
    following.prev = following.next


def stray(a: CachingAllocator) -> None:
    live(a, 1024).stream = 7


def other_rank(a: CachingAllocator) -> None:
    live(a, 1024).rank += 1 << 40


def unlisted(a: CachingAllocator) -> None:
    del a.heap.live[1024]


def in_no_chain(a: CachingAllocator) -> None:
    loose = Block(7, 512, 0, a.heap.small, 0)
    loose.allocated = True
    loose.prev = live(a, 0)
    a.heap.live[7] = loose


def unmerged(a: CachingAllocator) -> None:
    block = a.heap.pending.pop(1536)
    block.event_count = 0
    block.stream_uses = None
    block.pool.insert(block)


def listed_as_free(a: CachingAllocator) -> None:
    next(iter(a.heap.small)).allocated = True


def in_another_pool(a: CachingAllocator) -> None:
    next(iter(a.heap.small)).pool = a.heap.large


def not_ascending(a: CachingAllocator) -> None:
    for ptr in [a.malloc(size * MIB, stream=4096) for size in (12, 14)]:
        a.free(ptr)
    a.heap.large.of(4096).keys.reverse()


def key_of_nothing(a: CachingAllocator) -> None:
    a.heap.small.of(0).keys.append(1 << 63)


def stale_key(a: CachingAllocator) -> None:
    next(iter(a.heap.small)).key += 1


def not_allocated(a: CachingAllocator) -> None:
    live(a, 1024).allocated = False


def not_pending(a: CachingAllocator) -> None:
    a.heap.pending[1536].allocated = True


def elsewhere(a: CachingAllocator) -> None:
    a.heap.live[1025] = a.heap.live.pop(1024)


def no_pool_of_the_heap(a: CachingAllocator) -> None:
    a.heap.pools.pop()


def overlap(a: CachingAllocator) -> None:
    block = a.heap.live.pop(2 * MIB)
    block.ptr = MIB
    a.heap.live[MIB] = block


def one_too_many(a: CachingAllocator) -> None:
    a.heap.stats.fold()
    a.heap.stats.pools[True].allocation.increase(1)


def split_bytes(a: CachingAllocator) -> None:
    a.heap.stats.fold()
    a.heap.stats.pools[True].inactive_split_bytes.current -= 512


def reserved(a: CachingAllocator) -> None:
    a.heap.reserved += 512


def used(a: CachingAllocator) -> None:
    a.device.used = 0


def low_peak(a: CachingAllocator) -> None:
    a.heap.stats.pools[True].segment.peak = 0


def not_the_sum(a: CachingAllocator) -> None:
    a.heap.stats.all.segment.increase(1)


def below_request(a: CachingAllocator) -> None:
    live(a, 1024).requested_size = 513


BROKEN: list[tuple[int, Callable[[CachingAllocator], None], str]] = [
    (1, gap, "a gap after <allocated block at 0x400, 0 bytes, stream 0x0>"),
    (
        2,
        wrong_prev,
        "<allocated block at 0x400, 512 bytes, stream 0x0> does not know "
        "<allocated block at 0x0, 1024 bytes, stream 0x0>",
    ),
    (2, stray, "<allocated block at 0x400, 512 bytes, stream 0x7> strays"),
    (2, other_rank, "<allocated block at 0x400, 512 bytes, stream 0x0> has a rank"),
    (2, unlisted, "<allocated block at 0x400, 512 bytes, stream 0x0> is in a chain but in no list"),
    (2, in_no_chain, "a block is in no chain or in two"),
    (3, unmerged, "<free block at 0x600, 1024 bytes, stream 0x0> should have merged"),
    (4, listed_as_free, f"<allocated block at 0xa00, {REST} bytes, stream 0x0> is listed as free"),
    (
        4,
        in_another_pool,
        f"<free block at 0xa00, {REST} bytes, stream 0x0> is listed in another pool",
    ),
    (4, not_ascending, "the keys of a pool are not ascending"),
    (4, key_of_nothing, "the keys of a pool do not match its blocks"),
    (4, stale_key, f"<free block at 0xa00, {REST} bytes, stream 0x0> is listed under a wrong key"),
    (4, no_pool_of_the_heap, "a pool is not among the pools"),
    (5, elsewhere, "<allocated block at 0x400, 512 bytes, stream 0x0> is listed under 0x401"),
    (5, not_allocated, "<free block at 0x400, 512 bytes, stream 0x0> is listed as allocated"),
    (5, not_pending, "<allocated block at 0x600, 1024 bytes, stream 0x0> is listed as pending"),
    (6, overlap, "a segment ends at 0x200000, past the next one at 0x100000"),
    (7, one_too_many, "allocation is 3, the blocks sum to 2"),
    (7, split_bytes, "inactive_split_bytes is 2094080, the blocks sum to 2094592"),
    (8, reserved, "reserved is 33554944, mapped are 33554432"),
    (8, used, "33554432 bytes mapped of 0 used"),
    (9, low_peak, "the peak of segment is below its current value"),
    (9, not_the_sum, "segment.all is not the sum of its pools"),
    (10, below_request, "<allocated block at 0x400, 512 bytes, stream 0x0> is below its request"),
]


@pytest.mark.parametrize(
    ("number", "break_it", "what"), BROKEN, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_broken_invariant_is_named(
    a: CachingAllocator, number: int, break_it: Callable[[CachingAllocator], None], what: str
) -> None:
    break_it(a)
    with pytest.raises(InvariantError) as error:
        a.check()
    assert str(error.value) == f"invariant {number} is broken: {what}; please report this"


@pytest.mark.parametrize(
    ("number", "name", "total"),
    [
        (7, "allocation", 2),
        (7, "allocated_bytes", 1024 + 512),
        (7, "active", 3),
        (7, "active_bytes", 1024 + 512 + 1024),
        (7, "requested_bytes", 1000 + 512 + 600),
        (7, "inactive_split", 1),
        (7, "inactive_split_bytes", REST),
        (8, "reserved_bytes", 2 * MIB),
    ],
)
def test_each_sum_over_blocks_is_compared(
    a: CachingAllocator, number: int, name: str, total: int
) -> None:
    a.heap.stats.fold()
    getattr(a.heap.stats.pools[True], name).current += 1
    with pytest.raises(InvariantError) as error:
        a.check()
    assert str(error.value) == (
        f"invariant {number} is broken: {name} is {total + 1}, the blocks sum to {total}; "
        "please report this"
    )


def test_every_invariant_is_broken_once() -> None:
    assert {number for number, _, _ in BROKEN} == set(range(1, 11))


def test_an_unmapped_block_among_the_mapped_is_found() -> None:
    a = CachingAllocator("1GiB", "expandable_segments:True")
    a.malloc(5 * MIB)
    a.check()
    next(iter(a.heap.large.unmapped)).mapped = True
    with pytest.raises(InvariantError) as error:
        a.check()
    assert str(error.value) == (
        f"invariant 4 is broken: <free block at {20 * MIB:#x}, {1140 * MIB} bytes, stream 0x0> "
        "is listed as unmapped; please report this"
    )


def test_a_block_shows_its_state_its_range_and_its_stream() -> None:
    """As in the messages above; "active" is freed by its user and waiting."""
    a = CachingAllocator("1GiB", "expandable_segments:True")
    for size in (600, 5 * MIB):
        a.malloc(size, stream=4096)
    a.record_stream(0, 8192)
    first = live(a, 0)
    assert repr(first) == "<allocated block at 0x0, 1024 bytes, stream 0x1000>"
    a.free(0)
    assert repr(first) == "<active block at 0x0, 1024 bytes, stream 0x1000>"
    rest = first.next
    assert rest is not None
    assert repr(rest) == f"<free block at 0x400, {2 * MIB - 1024} bytes, stream 0x1000>"
    behind = rest.next
    assert behind is not None
    assert repr(behind) == f"<unmapped block at 0x200000, {1150 * MIB} bytes, stream 0x1000>"
