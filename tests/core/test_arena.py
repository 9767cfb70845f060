"""Addresses that the CUDA driver chose, compared with the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.core import AddressEvent, AddressEventKind, Arena, Device
from allocsim.units import GIB, MIB, round_up
from tests.naive.driver import Driver

DRIVER = Path(__file__).parents[2] / "traces" / "h200" / "driver.json"
TOP = 64 * GIB


def test_an_arena_places_what_cu_mem_alloc_placed_on_an_h200() -> None:
    """Two values come from the recording.

    The chunk of the CUDA context has 24 MiB left, and the first chunk of the program has its
    address.
    """
    calls = json.loads(DRIVER.read_text())["addresses"]
    arena = Arena(calls[3][1] + 32 * MIB)
    arena.offer(calls[0][1], calls[0][1] + 24 * MIB)
    placed: list[tuple[int, int]] = []
    expected = [address for size, address in calls if size != "free"]
    for size, address in calls:
        if size == "free":
            arena.release(*placed[address])
            continue
        start = arena.place(round_up(size, 2) * MIB)
        placed.append((start, start + round_up(size, 2) * MIB))
    assert [start for start, _ in placed] == expected
    assert len(expected) == 18


def mib_below_top(arena: Arena, *sizes: int) -> list[int]:
    """Return the addresses of requests of the given MiB, in MiB below the top."""
    return [(TOP - arena.place(size * MIB)) // MIB for size in sizes]


def test_chunks_of_32_mib_go_downwards_and_are_filled_from_their_beginning() -> None:
    assert mib_below_top(Arena(TOP), 20, 12, 2, 44, 20, 30) == [32, 12, 64, 128, 84, 62]


def test_a_request_takes_the_lowest_hole_not_the_narrowest() -> None:
    arena = Arena(TOP)
    assert mib_below_top(arena, 30, 20, 2) == [32, 64, 44]


def test_a_hole_never_spans_two_chunks() -> None:
    arena = Arena(TOP)
    assert mib_below_top(arena, 20, 20, 14) == [32, 64, 96]


def test_an_empty_chunk_is_given_up_and_its_place_cut_anew_from_its_end() -> None:
    arena = Arena(TOP)
    assert mib_below_top(arena, 32, 96, 32) == [32, 128, 160]
    arena.release(TOP - 128 * MIB, TOP - 32 * MIB)
    assert mib_below_top(arena, 20, 64, 64) == [64, 128, 224]


def test_the_top_is_free_again_once_everything_is_released() -> None:
    arena = Arena(TOP)
    assert mib_below_top(arena, 64, 20) == [64, 96]
    arena.release(TOP - 64 * MIB, TOP)
    arena.release(TOP - 96 * MIB, TOP - 76 * MIB)
    assert mib_below_top(arena, 512) == [512]


def test_neighbours_that_are_released_become_one_hole() -> None:
    arena = Arena(TOP)
    assert mib_below_top(arena, 8, 8, 8, 8) == [32, 24, 16, 8]
    for first in (24, 8, 16):
        arena.release(TOP - first * MIB, TOP - (first - 8) * MIB)
    assert mib_below_top(arena, 24) == [24]


def test_what_is_wider_than_the_space_below_goes_above_all_others() -> None:
    arena = Arena(64 * MIB)
    assert arena.place(2 * MIB) == 32 * MIB
    assert arena.place(40 * MIB) == 64 * MIB


def event(kind: AddressEventKind, start: int, end: int) -> AddressEvent:
    return AddressEvent(kind, TOP - start * MIB, TOP - end * MIB)


def test_a_hole_of_the_context_is_used_from_its_moment_on_and_never_given_up() -> None:
    arena = Arena(TOP - 512 * MIB)
    assert mib_below_top(arena, 20) == [544]
    arena.apply(event(AddressEventKind.HOLE, 24, 0))
    assert mib_below_top(arena, 20) == [24]
    arena.release(TOP - 24 * MIB, TOP - 4 * MIB)
    assert mib_below_top(arena, 24) == [24]


def test_a_hole_that_something_lies_in_is_one_elsewhere() -> None:
    arena = Arena(TOP)
    assert mib_below_top(arena, 20) == [32]
    arena.apply(event(AddressEventKind.HOLE, 40, 0))
    assert mib_below_top(arena, 34) == [96]


def test_a_gap_is_used_from_its_upper_end_down() -> None:
    arena = Arena(TOP - 512 * MIB)
    assert mib_below_top(arena, 148) == [672]
    arena.apply(event(AddressEventKind.GAP, 256, 96))
    assert mib_below_top(arena, 20, 40, 148) == [128, 192, 832]


def test_a_gap_below_all_chunks_is_free_already() -> None:
    arena = Arena(TOP)
    assert mib_below_top(arena, 20) == [32]
    arena.apply(event(AddressEventKind.GAP, 256, 96))
    assert mib_below_top(arena, 148) == [192]


def test_what_others_take_is_placed_by_the_same_rule_and_stays() -> None:
    arena = Arena(TOP)
    assert mib_below_top(arena, 20) == [32]
    arena.apply(event(AddressEventKind.TAKEN, 300, 298))
    assert mib_below_top(arena, 2) == [10]
    arena.release(TOP - 32 * MIB, TOP - 12 * MIB)
    arena.release(TOP - 10 * MIB, TOP - 8 * MIB)
    assert mib_below_top(arena, 32) == [64]


def test_events_are_of_no_effect_under_other_policies() -> None:
    device = Device(GIB, policy="firstfit")
    device.apply(event(AddressEventKind.TAKEN, 300, 200))
    assert device.cuda_malloc(MIB) == 0


def test_adopted_memory_is_in_use_and_the_rest_of_its_chunk_free() -> None:
    arena = Arena(TOP)
    arena.adopt(TOP - 64 * MIB, TOP - 44 * MIB)
    assert mib_below_top(arena, 2, 20) == [44, 96]
    arena.release(TOP - 64 * MIB, TOP - 44 * MIB)
    assert mib_below_top(arena, 20) == [64]


def test_a_device_keeps_ranges_apart_from_segments() -> None:
    device = Device(GIB, policy="driver")
    first, second = device.reserve_range(100 * MIB), device.reserve_range(MIB)
    assert (first, second - first) == (0x3_0200_0000, 128 * MIB)
    assert device.cuda_malloc(MIB) == 0x7F00_0000_0000 - 32 * MIB


def test_a_device_adopts_segments_from_before() -> None:
    device = Device(GIB, policy="driver", base_address=TOP)
    device.adopt(TOP - 32 * MIB, 20 * MIB)
    assert device.cuda_malloc(12 * MIB) == TOP - 12 * MIB
    device.cuda_free(TOP - 32 * MIB)
    assert device.cuda_malloc(4 * MIB) == TOP - 32 * MIB


OPS = st.lists(
    st.one_of(
        st.integers(1, 45).map(lambda pages: 2 * pages * MIB),
        st.integers(-40, -1),
    ),
    max_size=60,
)


@given(OPS)
def test_every_address_is_that_of_a_second_opinion(ops: list[int]) -> None:
    """A positive number allocates bytes, a negative one frees an allocation."""
    device = Device(64 * GIB, policy="driver", base_address=TOP)
    naive = Driver(64 * GIB, 0, "driver", TOP)
    held: list[tuple[int, int]] = []
    for op in ops:
        if op > 0:
            address = device.cuda_malloc(op)
            assert address == naive.malloc(op)
            assert address is not None
            held.append((address, op))
        elif held:
            address, size = held.pop(op % len(held))
            device.cuda_free(address)
            naive.mfree(address, size)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(1, 30)), max_size=60))
def test_contradictory_recordings_do_no_harm(moves: list[tuple[bool, int, int]]) -> None:
    """Adopted and released ranges may overlap; addresses stay whole pages."""
    arena = Arena(TOP)
    for is_adopted, at, pages in moves:
        start = TOP + 2 * (at - 60) * MIB
        change = arena.adopt if is_adopted else arena.release
        change(start, start + 2 * pages * MIB)
        address, is_hole = arena.expected(2 * pages * MIB)
        assert address % (2 * MIB) == 0
        assert not is_hole or arena.is_free(address, address + 2 * pages * MIB)


@pytest.mark.parametrize("size", [2, 32, 34, 1000])
def test_what_is_expected_is_what_is_placed(size: int) -> None:
    arena = Arena(TOP)
    arena.place(20 * MIB)
    expected, _ = arena.expected(size * MIB)
    assert arena.place(size * MIB) == expected
