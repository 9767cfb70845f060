"""The simulated driver: pages, addresses, streams."""

from __future__ import annotations

import pytest

from allocsim.core import NEWEST, CachingAllocator, Device
from allocsim.errors import ConfigError, OutOfMemoryError
from allocsim.units import GIB, MIB


def test_memory_is_counted_in_pages_and_an_exact_fit_succeeds() -> None:
    device = Device(6 * MIB)
    assert device.cuda_malloc(2 * MIB + 1) == 0
    assert device.free == 2 * MIB
    assert device.cuda_malloc(2 * MIB) == 4 * MIB
    assert device.cuda_malloc(1) is None
    assert device.free == 0


def test_what_the_context_holds_is_not_there() -> None:
    device = Device(6 * MIB, context_memory=4 * MIB)
    assert device.cuda_malloc(2 * MIB + 1) is None
    assert device.cuda_malloc(2 * MIB) == 0


def test_the_least_device_that_would_have_answered_a_refused_call() -> None:
    device = Device(16 * MIB, context_memory=2 * MIB)
    device.cuda_malloc(4 * MIB)
    assert device.refused_below is None
    device.cuda_malloc(14 * MIB)
    assert device.refused_below == 20 * MIB
    assert not device.create_handle(12 * MIB)
    assert device.refused_below == 18 * MIB
    device.cuda_malloc(40 * MIB)
    assert device.refused_below == 18 * MIB


def test_what_a_recording_says_was_refused_tells_of_no_device() -> None:
    device = Device(16 * MIB)
    device.room = 4 * MIB
    assert device.cuda_malloc(8 * MIB) is None
    assert device.refused_below is None


def test_bump_never_reuses_an_address() -> None:
    device = Device(GIB, base_address=4096 * MIB)
    first = device.cuda_malloc(3 * MIB)
    assert first == 4096 * MIB
    device.cuda_free(first)
    assert device.cuda_malloc(3 * MIB) == first + 4 * MIB
    assert device.used == 4 * MIB


def test_firstfit_takes_the_lowest_hole_that_fits() -> None:
    device = Device(GIB, policy="firstfit")
    a, b, c, d = (device.cuda_malloc(size * MIB) for size in (2, 4, 6, 2))
    assert (a, b, c, d) == (0, 2 * MIB, 6 * MIB, 12 * MIB)
    for address in (a, c):
        assert address is not None
        device.cuda_free(address)
    assert device.cuda_malloc(4 * MIB) == 6 * MIB
    assert device.cuda_malloc(2 * MIB) == 0
    assert device.cuda_malloc(4 * MIB) == 14 * MIB


@pytest.mark.parametrize("order", [(0, 2, 4), (4, 2, 0), (0, 4, 2), (2, 4, 0)])
def test_holes_that_touch_are_one(order: tuple[int, ...]) -> None:
    device = Device(GIB, policy="firstfit")
    for _ in range(4):
        device.cuda_malloc(2 * MIB)
    for address in order:
        device.cuda_free(address * MIB)
    assert device.cuda_malloc(6 * MIB) == 0


def test_a_hole_that_is_filled_exactly_leaves_nothing_behind() -> None:
    """Otherwise the range freed after it would not join the next hole."""
    device = Device(GIB, policy="firstfit", base_address=2 * MIB)
    for _ in range(4):
        device.cuda_malloc(2 * MIB)
    device.cuda_free(2 * MIB)
    assert device.cuda_malloc(2 * MIB) == 2 * MIB
    device.cuda_free(6 * MIB)
    device.cuda_free(4 * MIB)
    assert device.cuda_malloc(4 * MIB) == 4 * MIB


def test_what_lies_at_the_end_goes_back_to_the_end() -> None:
    device = Device(GIB, policy="firstfit")
    device.cuda_malloc(2 * MIB)
    device.cuda_malloc(2 * MIB)
    device.cuda_free(2 * MIB)
    assert device.cuda_malloc(100 * MIB) == 2 * MIB


def test_a_dictated_address_is_used_once() -> None:
    device = Device(GIB)
    device.dictate_address(77 * MIB)
    assert device.cuda_malloc(2 * MIB) == 77 * MIB
    assert device.cuda_malloc(2 * MIB) == 0
    device.dictate_address(1)
    device.dictate_address(99 * MIB)
    assert device.cuda_malloc(2 * MIB) == 99 * MIB
    device.cuda_free(77 * MIB)
    assert device.used == 4 * MIB


def test_an_address_in_use_is_not_given_to_a_second_allocation() -> None:
    """A replay that differs from its recording may still have a segment there."""
    device = Device(GIB)
    device.dictate_address(77 * MIB)
    there = device.cuda_malloc(2 * MIB)
    device.dictate_address(77 * MIB)
    other = device.cuda_malloc(4 * MIB)
    assert there == 77 * MIB != other
    for address in (there, other):
        assert address is not None
        device.cuda_free(address)
    assert device.used == 0


def test_adopted_memory_counts_and_pushes_new_addresses_past_it() -> None:
    device = Device(GIB)
    device.adopt(10 * MIB, 3 * MIB)
    assert device.used == 4 * MIB
    assert device.cuda_malloc(2 * MIB) == 14 * MIB
    device.cuda_free(10 * MIB)
    assert device.used == 2 * MIB


@pytest.mark.parametrize("policy", ["bump", "firstfit"])
def test_adopted_addresses_hold_no_memory_and_are_not_handed_out(policy: str) -> None:
    device = Device(GIB, policy=policy)
    device.adopt_address(10 * MIB, 100 * MIB)
    device.adopt_address(4 * MIB, 2 * MIB)
    assert device.used == 0
    assert device.cuda_malloc(2 * MIB) == 110 * MIB


def test_handles_come_and_go() -> None:
    device = Device(41 * MIB)
    assert device.create_handle(20 * MIB)
    assert device.create_handle(20 * MIB)
    assert not device.create_handle(20 * MIB)
    device.release_handle(20 * MIB)
    assert device.free == 21 * MIB


def test_an_event_passes_with_everything_before_it_on_its_stream() -> None:
    device = Device(GIB)
    first, second = device.record_event(3), device.record_event(3)
    other = device.record_event(0)
    assert not device.is_done(3, first)
    device.wait_for(3, second)
    assert device.is_done(3, first)
    device.wait_for(3, first)  # never decreases
    assert device.is_done(3, second)
    assert not device.is_done(0, other)
    device.synchronize()
    assert device.is_done(0, other)
    third = device.record_event(3)
    assert not device.is_done(3, third)
    device.synchronize(3)
    assert device.is_done(3, third)


def test_events_are_numbered_on_each_stream() -> None:
    device = Device(GIB)
    assert [device.record_event(stream) for stream in (3, 3, 0, 3, 0)] == [1, 2, 1, 3, 2]


@pytest.mark.parametrize("context_memory", [0, 1])
def test_the_smallest_device_and_a_context_that_fills_it(context_memory: int) -> None:
    assert Device(1, context_memory=context_memory).free == 1 - context_memory


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"device_memory": 0},
            "^device_memory 0 with context_memory 0: expected a positive size and a context that "
            "fits in it$",
        ),
        (
            {"device_memory": 1 << 63},
            "^device_memory 9223372036854775808 with host_memory 0: expected at most ",
        ),
        ({"device_memory": 10, "context_memory": 11}, "a context that fits in it"),
        (
            {"address_policy": "best"},
            "address_policy 'best' is unknown; expected bump, firstfit or driver",
        ),
        ({"base_address": -1}, "base_address -1 is negative"),
        (
            {"torch_version": "1.13"},
            f"torch_version '1.13' is not modelled; expected 2.1 to {NEWEST}",
        ),
        ({"torch_version": "3.0"}, "not modelled"),
    ],
)
def test_a_device_that_cannot_be_is_refused(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        CachingAllocator(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["2.9.1", "2.9.1+cu126", "2.9"])
def test_patch_releases_belong_to_their_minor_one(version: str) -> None:
    assert CachingAllocator(torch_version=version).release.version == "2.9"


def test_a_driver_that_lends_hands_out_the_hosts_memory_once_the_card_is_full() -> None:
    device = Device(6 * MIB, context_memory=2 * MIB, host_memory=4 * MIB)
    assert device.cuda_malloc(4 * MIB) == 0
    assert (device.free, device.spilled) == (0, 0)
    address = device.cuda_malloc(3 * MIB)
    assert address is not None
    assert (device.free, device.available, device.spilled) == (0, 0, 4 * MIB)
    assert device.cuda_malloc(1) is None
    device.cuda_free(address)
    assert (device.free, device.available, device.spilled) == (0, 4 * MIB, 0)


def test_handles_of_expandable_segments_are_lent_too() -> None:
    device = Device(2 * MIB, host_memory=2 * MIB)
    assert device.create_handle(2 * MIB)
    assert device.create_handle(2 * MIB)
    assert not device.create_handle(2 * MIB)
    assert device.spilled == 2 * MIB


def test_no_memory_can_be_lent_that_is_less_than_none() -> None:
    with pytest.raises(ConfigError, match="host_memory -1 is negative"):
        Device(GIB, host_memory=-1)


def test_an_allocator_goes_on_where_it_would_have_failed() -> None:
    """The card is reported as full without the host memory, as by cudaMemGetInfo."""
    refusing = CachingAllocator("64MiB")
    lending = CachingAllocator("64MiB", host_spill="64MiB")
    for allocator in (refusing, lending):
        allocator.malloc(60 * MIB)
    with pytest.raises(OutOfMemoryError):
        refusing.malloc(40 * MIB)
    lending.malloc(40 * MIB)
    assert lending.device.spilled == 36 * MIB
    with pytest.raises(OutOfMemoryError, match="of which 0 bytes is free"):
        lending.malloc(40 * MIB)
