"""The free block that serves a request: order, keys, streams and size classes (1.3, 1.5)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.core import RELEASES, ReplayAllocator, find_split_merge
from allocsim.core.block import Block
from allocsim.core.constants import IS_COMPILED
from allocsim.core.pool import NARROW_PLACES, NARROW_SIZES, RANK_MASK, BlockPool, KeyLayout
from allocsim.core.releases import FreeBlockOrder
from allocsim.errors import OutOfMemoryError
from allocsim.units import GIB, KIB, MIB, TIB
from tests.core.planting import segment

from .conftest import Make, held

ORDERS = {torch: release.free_block_order for torch, release in RELEASES.items()}
UNROUNDED = [version for version, release in RELEASES.items() if release.one_division_keeps_size]
PAGES = NARROW_PLACES // 512
_LARGE = min(NARROW_PLACES // 5, NARROW_SIZES // 2)
_ROUNDS = NARROW_PLACES // _LARGE + 1
_SIZES = (512, 4096, MIB, 3 * MIB, 12 * MIB, 12 * MIB, 40 * MIB)


@pytest.mark.parametrize(
    ("size", "conf", "is_small"),
    [
        (MIB - 1, "", True),
        (MIB, "", True),
        (MIB + 1, "", False),
        (2 * MIB, "", False),
        (MIB - 1, "roundup_power2_divisions:4", True),
        (MIB + 1, "roundup_power2_divisions:4", False),
    ],
)
def test_up_to_one_mib_is_small(make: Make, size: int, conf: str, is_small: bool) -> None:
    a = make(conf=conf)
    a.malloc(size)
    [segment] = a.memory_snapshot()
    assert segment["segment_type"] == ("small" if is_small else "large")


def test_rounding_to_a_power_of_two_comes_before_the_choice(make: Make) -> None:
    a = make(conf="roundup_power2_divisions:4")
    a.malloc(MIB + 1)
    assert a.memory_stats()["allocated_bytes.large_pool.current"] == 1280 * KIB


def test_the_smallest_block_that_fits_is_taken(make: Make) -> None:
    a = make()
    sizes = [30 * MIB, 12 * MIB, 20 * MIB]
    held = [a.malloc(size) for size in sizes]
    for ptr in held:
        a.free(ptr)
    assert a.malloc(11 * MIB) == held[1]
    assert a.malloc(13 * MIB) == held[2]


def test_a_block_of_another_stream_is_never_used(make: Make) -> None:
    a = make()
    a.free(a.malloc(12 * MIB, stream=1))
    assert a.malloc(12 * MIB, stream=2) == 12 * MIB
    assert a.malloc(12 * MIB, stream=1) == 0


@pytest.mark.parametrize("torch", RELEASES)
def test_ties_between_segments_follow_the_release(make: Make, torch: str) -> None:
    """The younger segment has the lower address: by address it comes first, by age last."""
    a = make("64MiB", torch_version=torch, address_policy="firstfit")
    gap = a.malloc(12 * MIB)
    old = a.malloc(12 * MIB)
    a.malloc(12 * MIB)
    a.free(gap)
    a.empty_cache()
    young = a.malloc(12 * MIB)
    a.free(young)
    a.free(old)
    assert (gap, young, old) == (0, 0, 12 * MIB)
    is_by_address = ORDERS[torch] is FreeBlockOrder.ADDRESS
    assert a.malloc(12 * MIB) == (young if is_by_address else old)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (FreeBlockOrder.ADDRESS, [10, 20, 30]),
        (FreeBlockOrder.SEGMENT, [20, 30, 10]),
        (FreeBlockOrder.CREATION, [20, 30, 10]),
    ],
)
def test_keys_order_by_stream_size_rank_and_address(
    order: FreeBlockOrder, expected: list[int]
) -> None:
    layout = KeyLayout(order)
    pool = BlockPool(False, layout)
    ages = {10: 3, 20: 1, 30: 2}
    for page in (30, 10, 20):
        rank = {
            FreeBlockOrder.ADDRESS: 0,
            FreeBlockOrder.SEGMENT: (ages[page] - page) * 512 & RANK_MASK,
            FreeBlockOrder.CREATION: ages[page],
        }[order]
        pool.insert(Block(page * 512, 512, 0, pool, rank))
    pool.insert(Block(5 * 512, 1024, 0, pool, 0))
    pool.insert(Block(1 * 512, 512, 7, pool, 0))
    assert [block.ptr // 512 for block in pool] == [*expected, 5, 1]
    found = pool.smallest_at_least(0, 512)
    assert found is not None
    assert found.ptr == expected[0] * 512
    pool.remove(found)
    assert len(pool) == 4
    assert found not in list(pool)
    assert pool.smallest_at_least(0, 1025) is None
    assert pool.smallest_at_least(9, 1) is None


@pytest.mark.parametrize("torch", RELEASES)
def test_within_a_segment_only_2_12_prefers_the_older_object(make: Make, torch: str) -> None:
    """A split makes a new object for the front; the tail keeps the old one and its number."""
    a = make(torch_version=torch)
    ptrs = [a.malloc(512) for _ in range(5)]
    a.free(ptrs[0])
    a.free(ptrs[1])
    front, tail = a.malloc(512), a.malloc(512)
    assert (front, tail) == (0, 512)
    a.free(front)  # the newest object, at the lowest address
    a.free(ptrs[3])
    assert a.malloc(512) == (ptrs[3] if torch == "2.12" else front)
    a.check()


@st.composite
def free_blocks(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw (stream, size, place) with distinct places and few sizes, so that there are ties."""
    places = draw(st.lists(st.integers(0, PAGES - 1), unique=True, max_size=30))
    sizes = st.sampled_from([512, 1024, 20 * MIB, 8 * GIB, 9 * GIB, NARROW_SIZES - 512])
    return [(draw(st.integers(0, 1)), draw(sizes), 512 * place) for place in places]


@given(blocks=free_blocks(), rank=st.integers(0, 3))
def test_blocks_are_in_order_of_stream_size_and_place(
    blocks: list[tuple[int, int, int]], rank: int
) -> None:
    """Part of the place is the address, the rest is the rank of the segment."""
    layout = KeyLayout()
    pool = BlockPool(False, layout)
    for stream, size, place in blocks:
        add = min(place, rank * 512)
        pool.insert(Block(place - add, size, stream, pool, add))
    expected = sorted(blocks)
    for _ in ("narrow", "wide"):
        assert [(b.stream, b.size, b.rank + b.ptr) for b in pool] == expected
        there = list(pool)
        for block in there:
            pool.remove(block)
        assert not pool
        for block in reversed(there):
            pool.insert(block)
        layout.widen()
        pool.rebuild_keys()


def test_a_narrow_key_takes_no_more_than_its_form_is_quick_with() -> None:
    """Compiled, a machine word; plain, a byte of size adds less than 2**30 to a key."""
    layout = KeyLayout()
    last = layout.key(NARROW_SIZES - 512, NARROW_PLACES - 512)
    if IS_COMPILED:
        assert last == (1 << 64) - 1
    else:
        assert layout.size_shift == 29
        assert last == (NARROW_SIZES << 29) - 512
    assert layout.has_room_for(NARROW_PLACES - 512, 512, NARROW_SIZES - 512)
    assert not layout.has_room_for(NARROW_PLACES - 512, 1024, NARROW_SIZES - 512)
    assert not layout.has_room_for(0, 512, NARROW_SIZES)
    assert not layout.has_room_for(-512, 512, 512)


@pytest.mark.parametrize("torch", RELEASES)
def test_no_release_needs_wide_keys_from_the_start(make: Make, torch: str) -> None:
    assert not make(torch_version=torch).heap.layout.is_wide


@pytest.mark.parametrize("torch", UNROUNDED)
def test_sizes_that_are_no_multiples_of_512_need_wide_keys(make: Make, torch: str) -> None:
    """One division keeps a size as it is (1.2); the existing free blocks stay in order."""
    a = make(torch_version=torch)
    sizes = [14 * MIB, 12 * MIB, 16 * MIB, 12 * MIB]
    ptrs = [held(a, size) for size in sizes]
    a.begin_allocate_to_pool(1)
    inside = held(a, 18 * MIB)
    a.end_allocate_to_pool(1)
    for ptr in (*ptrs, inside):
        a.free(ptr)
    before = list(a.heap.large)
    assert not a.heap.layout.is_wide
    a.set_allocator_settings("roundup_power2_divisions:1")
    assert a.heap.layout.is_wide
    assert list(a.heap.large) == before
    a.check()
    assert [held(a, size) for size in (12 * MIB - 1, 12 * MIB - 3)] == [ptrs[1], ptrs[3]]
    a.check()


def test_what_a_recording_had_in_odd_sizes_needs_wide_keys(make: Make) -> None:
    a = make(torch_version="2.3")
    blocks = ((1025, 1025, "active_allocated"), (2 * MIB - 1025, 0, "inactive"))
    a.seed([segment(0, 2 * MIB, 0, True, blocks)])
    assert a.heap.layout.is_wide
    a.check()


@pytest.mark.parametrize("torch", RELEASES)
@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_where_a_process_has_its_memory_changes_nothing(torch: str, conf: str) -> None:
    """Places are counted from near the first segment, at any address."""
    bases = (0, 1 << 47, 0xFF00 << 48)
    low, *others = (
        ReplayAllocator("1GiB", conf, torch_version=torch, base_address=base) for base in bases
    )
    for a, base in zip((low, *others), bases, strict=True):
        ptrs = [held(a, size * MIB) for size in (12, 14, 12, 3, 3, 1)]
        for ptr in ptrs[::2]:
            a.free(ptr)
        again = [held(a, size * MIB) for size in (11, 12, 3)]
        assert [ptr - base for ptr in again] == [ptr - base for ptr in (ptrs[0], ptrs[2], ptrs[4])]
        assert not a.heap.layout.is_wide
        a.check()
    for high in others:
        assert low.memory_stats() == high.memory_stats()


@pytest.mark.parametrize("torch", RELEASES)
@pytest.mark.parametrize("first", [0x7F00_0000_0000, 1 << 47, 2 * MIB, 0xFF00 << 48])
def test_an_expandable_segment_where_a_recording_has_it_serves_no_larger_request(
    torch: str, first: int
) -> None:
    """It is created before its address is known (a random program, seed 5032342)."""
    a = ReplayAllocator("1GiB", "expandable_segments:True", torch_version=torch)
    for stream, base in ((0, first), (1, first + 2 * GIB), (2, first + 8 * TIB)):
        a.device.dictate_address(base)
        size = 20 * MIB + 1  # of 40 MiB, 512 bytes less are left
        assert held(a, size, stream) == base
        assert held(a, size, stream) == base + 20 * MIB + 512
        assert stream == 2 or not a.heap.layout.is_wide
        assert a.reserved_bytes == (stream + 1) * 60 * MIB
        a.check()


@pytest.mark.parametrize("torch", ["2.11", "2.12", "2.15"])
@pytest.mark.parametrize("there", [2 * MIB, 1 << 46, 0xFF00 << 48])
def test_the_lowest_address_comes_first_however_far_it_is_from_the_others(
    torch: str, there: int
) -> None:
    """Before the first segment and after it; in other releases the older block comes first."""
    a = ReplayAllocator("1GiB", torch_version=torch, base_address=1 << 47)
    near = held(a, 12 * MIB)
    a.device.dictate_address(there)
    far = held(a, 12 * MIB)
    assert far == there
    a.free(far)
    a.free(near)
    is_by_address = RELEASES[torch].free_block_order is FreeBlockOrder.ADDRESS
    assert held(a, 12 * MIB) == (min(near, far) if is_by_address else near)
    a.check()


@pytest.mark.parametrize("torch", RELEASES)
@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_all_that_is_there_goes_along_when_keys_become_wide(torch: str, conf: str) -> None:
    """Blocks in any state: allocated, waiting, free, in a private pool, unmapped."""
    a = ReplayAllocator("4GiB", conf, torch_version=torch, base_address=1 << 47)
    used, waits, free = (held(a, size * MIB) for size in (12, 14, 16))
    a.begin_allocate_to_pool(1)
    private = held(a, 18 * MIB)
    a.end_allocate_to_pool(1)
    a.record_stream(waits, 7)
    a.free(waits)
    a.free(free)
    a.device.dictate_address(2 * MIB)
    assert held(a, 30 * MIB, stream=1) == 2 * MIB
    a.check()
    a.synchronize()
    a.free(used)
    a.free(private)
    grown = held(a, 100 * MIB)
    assert held(a, 12 * MIB) == (grown + 100 * MIB if conf else used)
    a.check()


@pytest.mark.parametrize("torch", RELEASES)
def test_a_segment_that_was_made_before_it_was_told_where_it_lies(torch: str) -> None:
    """The device had no memory for it then; its later address needs wide keys."""
    a = ReplayAllocator(
        "80MiB", "expandable_segments:True", torch_version=torch, base_address=1 << 47
    )
    first = held(a, 60 * MIB)
    with pytest.raises(OutOfMemoryError):
        a.malloc(30 * MIB, 1)
    a.free(first)
    a.empty_cache()
    a.device.dictate_address(2 * MIB)
    assert held(a, 30 * MIB, 1) == 2 * MIB
    a.free(2 * MIB)
    assert held(a, 40 * MIB, 1) == 2 * MIB
    a.check()


@pytest.mark.parametrize("order", FreeBlockOrder)
def test_a_smaller_block_comes_first_wherever_it_lies(order: FreeBlockOrder) -> None:
    layout = KeyLayout(order)
    layout.widen()
    pool = BlockPool(False, layout)
    for size, ptr in ((1024, 0), (512, (1 << 64) - 512), (1536, 1 << 40)):
        pool.insert(Block(ptr, size, 0, pool, 0))
    assert [block.size for block in pool] == [512, 1024, 1536]


@pytest.mark.parametrize("torch", ["2.11", "2.12", "2.13", "2.15"])
@pytest.mark.parametrize(("below", "is_wide"), [(20 * MIB, False), (18 * MIB, True)])
def test_addresses_too_far_from_the_first_need_wide_keys(
    torch: str, below: int, is_wide: bool
) -> None:
    """A quarter of the places is before the first segment, the rest behind.

    From 2.13 on, places of segments begin at 0 at any address.
    """
    a = ReplayAllocator(64 * TIB, torch_version=torch, base_address=1 << 47)
    first = held(a, 12 * MIB)
    a.device.dictate_address((1 << 47) + 3 * NARROW_PLACES // 4 - below)
    far = held(a, 3 * MIB)  # a segment of 20 MiB
    is_by_address = RELEASES[torch].free_block_order is FreeBlockOrder.ADDRESS
    assert a.heap.layout.is_wide is (is_wide and is_by_address)
    a.free(far)
    a.free(first)
    assert held(a, 12 * MIB) == first
    a.check()


@pytest.mark.parametrize("torch", ["2.11", "2.13", "2.15"])
def test_segments_that_went_back_leave_their_places_to_others(torch: str) -> None:
    """From 2.13 on; up to 2.11 the driver reuses no address, and keys become wide."""
    a = ReplayAllocator(64 * TIB, torch_version=torch)
    for _ in range(_ROUNDS):
        old = held(a, _LARGE)
        a.free(old)
        a.empty_cache()
    young = [held(a, 12 * MIB) for _ in range(3)]
    for ptr in reversed(young):
        a.free(ptr)
    is_by_address = RELEASES[torch].free_block_order is FreeBlockOrder.ADDRESS
    assert a.heap.layout.is_wide is is_by_address
    assert [held(a, 12 * MIB) for _ in young] == young
    a.check()


def test_places_given_again_go_by_those_before_and_not_by_who_was_handed_out_first() -> None:
    a = ReplayAllocator(64 * TIB)
    first, second, third = (held(a, 12 * MIB) for _ in range(3))
    a.free(first)
    assert held(a, 12 * MIB) == first  # now the last of the allocated blocks
    for _ in range(_ROUNDS):
        a.free(held(a, _LARGE))
        a.empty_cache()
    assert not a.heap.layout.is_wide
    for ptr in (second, third, first):
        a.free(ptr)
    assert [held(a, 12 * MIB) for _ in range(3)] == [first, second, third]
    a.check()


def test_places_given_again_go_by_those_before_and_not_by_addresses() -> None:
    a = ReplayAllocator(64 * TIB, base_address=1 << 47)
    old = held(a, 12 * MIB)
    a.device.dictate_address(1 << 46)
    young = held(a, 12 * MIB)
    assert young < old
    for _ in range(_ROUNDS):
        a.free(held(a, _LARGE))
        a.empty_cache()
    assert not a.heap.layout.is_wide
    a.free(young)
    a.free(old)
    assert [held(a, 12 * MIB) for _ in range(2)] == [old, young]


def test_more_segments_at_a_time_than_there_are_places_need_wide_keys() -> None:
    a = ReplayAllocator(64 * TIB)
    for _ in range(_ROUNDS):
        held(a, _LARGE)
    assert a.heap.layout.is_wide
    a.check()


def drawn_addresses(conf: str, seed: int, *, changes: bool) -> list[int | None]:
    """Return the addresses of random requests on a small device, None for a refused one.

    changes: True to switch expandable segments on and off meanwhile.
    """
    draw = Random(seed)
    a = ReplayAllocator("1GiB", conf)
    live: list[int] = []
    found: list[int | None] = []
    for _ in range(400):
        if live and draw.random() < 0.5:
            a.free(live.pop(draw.randrange(len(live))))
        elif draw.random() < 0.03:
            a.empty_cache()
        elif changes and draw.random() < 0.1:
            a.set_allocator_settings(f"expandable_segments:{draw.choice((True, False))}")
        else:
            try:
                found.append(held(a, draw.choice(_SIZES), draw.choice((0, 0, 7, 9))))
                live.append(found[-1] or 0)
            except OutOfMemoryError:
                found.append(None)
    a.check()
    return found


@pytest.mark.skipif(IS_COMPILED, reason="a compiled module ignores a patched constant")
@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:30"])
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_places_given_anew_at_every_segment_change_no_address(
    conf: str, changes: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = drawn_addresses(conf, seed, changes=changes)
    monkeypatch.setattr(find_split_merge, "NARROW_PLACES", 0)
    assert drawn_addresses(conf, seed, changes=changes) == once


@pytest.mark.parametrize("seed", range(4))
def test_places_given_again_keep_the_order_of_segments(seed: int) -> None:
    """Compared with an allocator whose keys are wide from the start, which reuses no place."""
    draw = Random(seed)
    total = 200 * GIB
    a, b = ReplayAllocator(total), ReplayAllocator(total)
    b.heap.widen_keys()
    live: list[int] = []
    taken = 0
    while taken < 2 * NARROW_PLACES:
        for _ in range(60):
            if live and draw.random() < 0.55:
                ptr = live.pop(draw.randrange(len(live)))
                a.free(ptr)
                b.free(ptr)
            else:
                size, stream = draw.choice(_SIZES), draw.choice((0, 0, 7))
                ptr = held(a, size, stream)
                assert held(b, size, stream) == ptr
                live.append(ptr)
        for each in (a, b):
            each.free(held(each, 90 * GIB))
            each.empty_cache()
        taken += 90 * GIB
        a.check()
    assert not a.heap.layout.is_wide
    assert a.snapshot()["segments"] == b.snapshot()["segments"]


@pytest.mark.parametrize("torch", ["2.11", "2.13", "2.15"])
def test_a_block_of_a_tebibyte_needs_wide_keys(torch: str) -> None:
    a = ReplayAllocator(64 * TIB, torch_version=torch)
    large = held(a, TIB)
    assert a.heap.layout.is_wide
    a.free(large)
    assert held(a, TIB) == large
    a.check()
