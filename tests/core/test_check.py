"""`check` finds each of its numbered invariants when it is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from allocsim import InvariantError
from allocsim.core import CachingAllocator
from allocsim.core.block import Block
from allocsim.units import MIB


@pytest.fixture
def a() -> CachingAllocator:
    """Blocks of 1000 and 512 bytes, 600 pending and 30 MiB of their own; the rest free."""
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
    live(a, 1024).rank += 1 << 64


def unlisted(a: CachingAllocator) -> None:
    del a.heap.live[1024]


def unmerged(a: CachingAllocator) -> None:
    block = a.heap.pending.pop(1536)
    block.event_count = 0
    block.stream_uses = None
    block.pool.insert(block)


def listed_as_free(a: CachingAllocator) -> None:
    next(iter(a.heap.small)).allocated = True


def stale_key(a: CachingAllocator) -> None:
    next(iter(a.heap.small)).key += 1


def not_allocated(a: CachingAllocator) -> None:
    live(a, 1024).allocated = False


def not_pending(a: CachingAllocator) -> None:
    a.heap.pending[1536].allocated = True


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


BROKEN: list[tuple[int, Callable[[CachingAllocator], None]]] = [
    (1, gap),
    (2, wrong_prev),
    (2, stray),
    (2, other_rank),
    (2, unlisted),
    (3, unmerged),
    (4, listed_as_free),
    (4, stale_key),
    (5, not_allocated),
    (5, not_pending),
    (6, overlap),
    (7, one_too_many),
    (7, split_bytes),
    (8, reserved),
    (8, used),
    (9, low_peak),
    (9, not_the_sum),
    (10, below_request),
]


@pytest.mark.parametrize(("number", "break_it"), BROKEN, ids=lambda x: getattr(x, "__name__", x))
def test_a_broken_invariant_is_named(
    a: CachingAllocator, number: int, break_it: Callable[[CachingAllocator], None]
) -> None:
    break_it(a)
    with pytest.raises(InvariantError, match=f"invariant {number} is broken: .*; please report"):
        a.check()


def test_every_invariant_is_broken_once() -> None:
    assert {number for number, _ in BROKEN} == set(range(1, 11))


def test_an_unmapped_block_among_the_mapped_is_found() -> None:
    a = CachingAllocator("1GiB", "expandable_segments:True")
    a.malloc(5 * MIB)
    a.check()
    next(iter(a.heap.large.unmapped)).mapped = True
    with pytest.raises(InvariantError, match="invariant 4"):
        a.check()
