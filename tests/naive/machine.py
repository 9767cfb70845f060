"""Two allocators under one Hypothesis state machine that makes the same calls on both.

After each step the answers are equal: an address, or an error of the same class, with the same text
if it is an out-of-memory error.  At check steps and at the end all statistics and the snapshot are
equal.  After undefined behaviour, which both report, the machine makes no more calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
)

from allocsim.errors import (
    ConfigError,
    DriverRefusalError,
    OutOfMemoryError,
    UndefinedBehaviorError,
    UpstreamAssertionError,
)
from allocsim.units import GIB, KIB, MIB
from tests.golden.runner import Allocator, Factory

__all__ = ["differential_machine"]

# Option strings by the first release that accepts them.
PLAIN = {
    "": 1,
    "max_split_size_mb:21": 1,
    "max_split_size_mb:32": 1,
    "garbage_collection_threshold:0.5": 1,
    "garbage_collection_threshold:0.8,max_split_size_mb:24": 1,
    "roundup_power2_divisions:4": 1,
    "roundup_power2_divisions:1": 1,
    "roundup_power2_divisions:[1:8,4:4,16:2,>:1]": 1,
    "roundup_power2_divisions:[2:2,8:4]": 1,
    "max_split_size_mb:22,max_non_split_rounding_mb:21": 6,
    "max_split_size_mb:20": 10,
    "per_process_memory_fraction:0.7": 10,
    "large_segment_size_mb:11": 11,
    "large_segment_size_mb:33,max_split_size_mb:40": 11,
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.8": 12,
}
EXPANDABLE = {
    "expandable_segments:True": 1,
    "expandable_segments:True,garbage_collection_threshold:0.6": 1,
    "expandable_segments:True,roundup_power2_divisions:8": 1,
    "expandable_segments:True,max_split_size_mb:32": 1,
    "expandable_segments:False": 1,
    "expandable_segments:True,large_segment_size_mb:12": 11,
    "expandable_segments:True,expandable_segments_reserve:0.4": 15,
}
MEMORY = [24 * MIB, 32 * MIB, 45 * MIB, 64 * MIB, 100 * MIB, 256 * MIB, 512 * MIB, GIB]
EDGES = [512, KIB, *(n * MIB for n in (1, 2, 9, 10, 12, 20, 21, 22, 24, 32, 41, 42, 43, 44, 52))]
SIZES = st.one_of(
    st.sampled_from(EDGES),
    st.builds(int.__add__, st.sampled_from(EDGES), st.sampled_from([-513, -1, 0, 1, 513])).map(abs),
    st.integers(1, 4 * KIB),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 24 * MIB),
    st.sampled_from([0, GIB, 2 * GIB, 1 << 60]),
)
STREAMS = st.integers(0, 4).map(lambda n: n * 4096)
CLASSES = (
    *(ConfigError, DriverRefusalError, UpstreamAssertionError, UndefinedBehaviorError),
    ValueError,
)
POOLS = st.integers(1, 3)


def answer(ask: Callable[[], int | None]) -> tuple[str, Any]:
    """Return the result of one call: a value, or name and text of the error.

    Only texts from PyTorch are compared; other texts differ between the models.
    """
    try:
        return ("value", ask())
    except OutOfMemoryError as error:
        figures = (error.requested_bytes, error.rounded_bytes, error.tried_bytes)
        return ("OutOfMemoryError", (str(error), figures))
    except CLASSES as error:
        return (next(c.__name__ for c in type(error).__mro__ if c in CLASSES), None)


def comparable(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Return the snapshot without clocks and stack traces, which no model has."""
    unknown = ("time_us", "frames")
    traces = [
        [{k: v for k, v in entry.items() if k not in unknown} for entry in trace]
        for trace in snapshot["device_traces"]
    ]
    return {**snapshot, "device_traces": traces}


def strings(minor: int, expandable: bool) -> list[str]:
    """Return the option strings that release 2.`minor` accepts."""
    known = {**PLAIN, **EXPANDABLE} if expandable else PLAIN
    return [conf for conf, since in known.items() if minor >= since]


class Differential(RuleBasedStateMachine):
    """Rules of the machine; `differential_machine` makes the class for two allocators."""

    make_a: Factory
    make_b: Factory
    with_pools = False
    with_expandable = False
    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.over = False  # after undefined behaviour
        self.minor = 0
        self.palette: list[int] = [512]
        self.a: Allocator
        self.b: Allocator

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.minor = data.draw(st.integers(1, 15), label="minor")
        device = {
            "device_memory": data.draw(st.sampled_from(MEMORY), label="memory"),
            "conf": data.draw(st.sampled_from(strings(self.minor, self.with_expandable))),
            "torch_version": f"2.{self.minor}",
            "address_policy": data.draw(st.sampled_from(["bump", "firstfit", "driver"])),
            "base_address": data.draw(st.sampled_from([0, 0x7F00_0000_0000])),
            "context_memory": data.draw(st.sampled_from([0, 5 * MIB])),
            "record_history": True,
        }
        self.palette = data.draw(st.lists(st.sampled_from(EDGES), min_size=1, max_size=4))
        self.a = type(self).make_a(**device)
        self.b = type(self).make_b(**device)

    def both(self, call: Callable[[Allocator], int | None]) -> int | None:
        """Call both and compare; return the value, or None after an error."""
        if self.over:
            return None
        first, second = answer(lambda: call(self.a)), answer(lambda: call(self.b))
        assert first == second, f"{first} beside {second}"
        self.over = first[0] == UndefinedBehaviorError.__name__
        return first[1] if first[0] == "value" else None

    @rule(target=live, size=SIZES, stream=STREAMS)
    def malloc(self, size: int, stream: int) -> Any:
        address = self.both(lambda x: x.malloc(size, stream))
        return multiple() if address is None else address

    def malloc_many(self, size: int, stream: int, count: int) -> Any:
        found = [self.both(lambda x: x.malloc(size, stream)) for _ in range(count)]
        return multiple(*(address for address in found if address is not None))

    @rule(target=live, size=SIZES, stream=STREAMS, count=st.integers(2, 8))
    def malloc_several(self, size: int, stream: int, count: int) -> Any:
        return self.malloc_many(size, stream, count)

    @rule(target=live, index=st.integers(0, 3), stream=STREAMS, count=st.integers(1, 6))
    def malloc_alike(self, index: int, stream: int, count: int) -> Any:
        """Request one of a few sizes, so that free blocks of equal size compete."""
        return self.malloc_many(self.palette[index % len(self.palette)], stream % 8192, count)

    @rule(address=consumes(live))
    def free(self, address: int) -> None:
        self.both(lambda x: x.free(address))

    @rule(addresses=st.lists(consumes(live), min_size=2, max_size=8))
    def free_many(self, addresses: list[int]) -> None:
        for address in addresses:
            self.both(lambda x, a=address: x.free(a))  # type: ignore[misc]

    @rule(address=live, stream=STREAMS)
    def record_stream(self, address: int, stream: int) -> None:
        self.both(lambda x: x.record_stream(address, stream))

    @rule(address=consumes(live), streams=st.lists(STREAMS, min_size=1, max_size=5))
    def record_and_free(self, address: int, streams: list[int]) -> None:
        for stream in streams:
            self.both(lambda x, s=stream: x.record_stream(address, s))  # type: ignore[misc]
        self.both(lambda x: x.free(address))

    @rule(stream=st.one_of(st.none(), STREAMS))
    def synchronize(self, stream: int | None) -> None:
        self.both(lambda x: x.synchronize(stream))

    @rule()
    def empty_cache(self) -> None:
        self.both(lambda x: x.empty_cache())

    @rule(fraction=st.sampled_from([0.3, 0.5, 0.777, 0.95, 1.0]))
    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.both(lambda x: x.set_per_process_memory_fraction(fraction))

    @rule(accumulated=st.booleans())
    def reset(self, accumulated: bool) -> None:
        if accumulated:
            self.both(lambda x: x.reset_accumulated_memory_stats())
        else:
            self.both(lambda x: x.reset_peak_memory_stats())

    @rule(data=st.data())
    def set_allocator_settings(self, data: st.DataObject) -> None:
        conf = data.draw(st.sampled_from(strings(self.minor, self.with_expandable)))
        self.both(lambda x: x.set_allocator_settings(conf))

    @precondition(lambda self: self.with_pools)
    @rule(pool=POOLS, data=st.data())
    def begin_allocate_to_pool(self, pool: int, data: st.DataObject) -> None:
        no_split = self.minor >= 10 and data.draw(st.booleans())
        spare = self.minor >= 8 and data.draw(st.booleans())
        self.both(lambda x: x.begin_allocate_to_pool(pool, no_split=no_split, use_on_oom=spare))

    @precondition(lambda self: self.with_pools)
    @rule(pool=POOLS)
    def end_allocate_to_pool(self, pool: int) -> None:
        self.both(lambda x: x.end_allocate_to_pool(pool))

    @precondition(lambda self: self.with_pools)
    @rule(pool=POOLS)
    def release_pool(self, pool: int) -> None:
        self.both(lambda x: x.release_pool(pool))

    @precondition(lambda self: self.with_pools and self.minor >= 8)
    @rule(pool=POOLS)
    def empty_pool(self, pool: int) -> None:
        self.both(lambda x: x.empty_cache(pool))

    @precondition(lambda self: self.with_pools and self.minor >= 6)
    @rule(pool=POOLS)
    def delete_mempool(self, pool: int) -> None:
        self.both(lambda x: x.delete_mempool(pool))

    @rule()
    def check(self) -> None:
        """Compare all statistics and the whole snapshot."""
        if self.over or self.minor == 0:
            return
        first, second = self.a.memory_stats(), self.b.memory_stats()
        for key in first | second:
            assert first.get(key) == second.get(key), key
        first, second = comparable(self.a.snapshot()), comparable(self.b.snapshot())
        for key in first | second:
            assert first.get(key) == second.get(key), key

    def teardown(self) -> None:
        self.check()


def differential_machine(
    make_a: Factory, make_b: Factory, *, pools: bool = False, expandable: bool = False
) -> type[Differential]:
    """Return the machine for two allocators; pools and expandable segments are optional."""

    class Machine(Differential):
        with_pools = pools
        with_expandable = expandable

    Machine.make_a = staticmethod(make_a)
    Machine.make_b = staticmethod(make_b)
    return Machine
