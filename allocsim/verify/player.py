"""Run op scripts (lists of allocator calls) on the model.

The results have the form of the golden cases, stored results of real PyTorch in tests/golden.
A script continues after an out-of-memory error or a refusal by the driver; any other error ends it.
For a script that ran on a real GPU, the model is given the segment addresses and the free memory in
the history of real PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from allocsim.core import FREE, MALLOC, CachingAllocator, ReplayAllocator
from allocsim.errors import (
    AllocsimError,
    DriverRefusalError,
    OutOfMemoryError,
    UndefinedBehaviorError,
)
from allocsim.host import CachingHostAllocator
from allocsim.state import PoolId
from allocsim.units import format_size
from allocsim.verify.script import (
    ModelAnswer,
    Op,
    Script,
    golden_segment,
    golden_stats,
    stream_numbers,
)

HOST_MEMORY = 1 << 46
"""Bytes of the simulated host: scripts request less than 1 GiB, or more than any machine has."""


def play_host(script: Script, torch_version: str) -> ModelAnswer:
    allocator = CachingHostAllocator(
        script.conf, torch_version, host_memory=HOST_MEMORY, record_history=True
    )
    player = _HostPlayer(allocator, script)
    for number, op in enumerate(script.ops):
        try:
            player.step(number, op)
        except (AllocsimError, ValueError) as error:
            player.outcome.stopped = (number, error)
            break
    allocator.check()
    player.tell(len(script.ops))
    return player.outcome


class _HostPlayer:
    def __init__(self, allocator: CachingHostAllocator, script: Script) -> None:
        self.outcome = ModelAnswer()
        self._allocator = allocator
        self._handles = script.stream_handles()
        self._live: dict[Any, int] = {}
        self._numbers: dict[int, int] = {}
        self._plain: dict[str, Callable[..., None]] = {
            "S": allocator.synchronize,
            "e": allocator.empty_cache,
            "c": allocator.set_allocator_settings,
            "k": allocator.reset_peak_host_memory_stats,
            "K": allocator.reset_accumulated_host_memory_stats,
        }

    def step(self, at: int, op: Op) -> None:
        allocator, live = self._allocator, self._live
        match op:
            case ["a", name, size]:
                allocator.free(live.pop(name, None))
                self._allocate(name, size)
            case ["f", name]:
                allocator.free(live.pop(name, None))
            case ["r", name, stream]:
                if name in live:
                    allocator.record_event(live[name], self._handles[stream])
            case ["s", stream]:
                allocator.synchronize(self._handles[stream])
            case ["q"]:
                self._read(at)
            case ["P", what, pool, *stream]:
                self._capture(what, (0, pool), stream)
            case [letter, *arguments]:
                self._plain[letter](*arguments)

    def _capture(self, what: str, pool: PoolId, stream: list[int]) -> None:
        if what == "b":
            self._allocator.begin_allocate_to_pool(pool, self._handles[stream[0]])
        elif what == "e":
            self._allocator.end_allocate_to_pool(pool)
        else:
            self._allocator.release_pool(pool)

    def _allocate(self, name: object, size: int) -> None:
        try:
            address = self._allocator.malloc(size)
        except OutOfMemoryError:
            address = None
        if address is None:
            self.outcome.addresses.append(None)
            return
        self._live[name] = address
        number = self._numbers.setdefault(address, len(self._numbers))
        self.outcome.addresses.append(number)

    def _read(self, at: int) -> None:
        for key, value in self._allocator.host_memory_stats().items():
            self.outcome.stats[f"{at:06}.{key}"] = value

    def tell(self, at: int) -> None:
        self._read(at)
        allocator = self._allocator
        if "host_traces" not in allocator.release.snapshot_keys:
            return
        fresh = count()
        numbers: dict[int, int] = {}
        for entry in allocator.history:
            if entry.action == "segment_alloc":
                numbers[entry.address] = next(fresh)
            number = numbers[entry.address]
            self.outcome.trace.append([entry.action, number, entry.size, entry.pool_id[1]])
        for segment in allocator.host_segments():
            number = numbers[segment["address"]]
            pool = list(segment["segment_pool_id"])
            block = segment["blocks"][0] | {"address": number}
            parts = {"address": number, "segment_pool_id": pool, "blocks": [block]}
            self.outcome.segments.append(segment | parts)
        self.outcome.segments.sort(key=lambda segment: segment["address"])


_NEW_MEMORY = ("segment_alloc", "segment_map")
_ENDS_A_REQUEST = ("alloc", "oom")


class DriverTrace:
    """Decisions of a real GPU's driver, read from the history that PyTorch kept of a script.

    entries: the history, as items [action, address, bytes, stream number].
    """

    def __init__(self, entries: Sequence[Sequence[Any]]) -> None:
        self._entries = entries

    def dictate(self, allocator: CachingAllocator) -> None:
        """Make the simulated driver place the next new segment where the real driver placed it."""
        if not self._entries:
            return
        done = len(allocator.history)
        for action, address, *_ in self._entries[done:]:
            if action in _NEW_MEMORY:
                allocator.device.dictate_address(address)
                return
            if action in _ENDS_A_REQUEST:
                return

    def correct(self, trace: Sequence[list[Any]], messages: list[str]) -> None:
        """Copy the GPU's real free memory into the model's `oom` entries and error texts.

        trace, messages: history entries and error texts of the model.
        """
        texts = _naming_free_memory(messages)
        for ours, expected in zip(trace, self._entries, strict=False):
            if ours[0] != "oom":
                continue
            at = next(texts)
            if expected[0] == "oom":
                old, new = (
                    f"of which {format_size(answer[1])} is free" for answer in (ours, expected)
                )
                messages[at] = messages[at].replace(old, new)
                ours[1] = expected[1]


def _naming_free_memory(messages: Sequence[str]) -> Iterator[int]:
    # Yields the indices of the error texts that have an `oom` entry.  Requests of more than 1 EiB
    # and refusals of the driver have none.
    apart = ("more than 1EB memory", "preemptively rejected", DriverRefusalError.TEXT)
    return (i for i, text in enumerate(messages) if not any(words in text for words in apart))


_ONE = 0
"""Id of the only block, for calls of `ReplayAllocator.play` with a single malloc or free."""


def play(
    script: Script,
    torch_version: str,
    *,
    check_every: int = 0,
    in_rows: bool = False,
    handles: Mapping[int, int] | None = None,
    context_memory: int = 0,
    driver_trace: Sequence[Sequence[Any]] | None = None,
) -> ModelAnswer:
    """Run a script on a model of the PyTorch release `torch_version`, and return its results.

    check_every: number of ops between checks of the model's invariants; 0 to check them only at the
        end.
    in_rows: True to use the code of a replay for most requests and frees (core/fast_path.py).
    handles: dictionary from stream number to raw handle; None for the handles of the script.
    context_memory: bytes of the device that are in use outside PyTorch.
    driver_trace: history of a real GPU, with the addresses and free memory that its driver chose.
    """
    if script.is_host:
        return play_host(script, torch_version)
    allocator = ReplayAllocator(
        script.device_memory,
        script.conf,
        torch_version,
        address_policy=script.address_policy,
        base_address=script.base_address,
        context_memory=context_memory,
        record_history=True,
        fast_path=in_rows,
    )
    handles = script.stream_handles() if handles is None else handles
    player = _Player(allocator, handles, DriverTrace(driver_trace or ()))
    for number, op in enumerate(script.ops):
        try:
            player.step(op)
        except (AllocsimError, ValueError) as error:
            player.outcome.stopped = (number, error)
            break
        if check_every and number % check_every == 0:
            allocator.check()
    allocator.check()
    player.store_state()
    return player.outcome


def play_defined(
    script: Script, torch_version: str, **arguments: Any
) -> tuple[Script, ModelAnswer, UndefinedBehaviorError | None]:
    """Run a script up to the first op whose behaviour PyTorch leaves undefined.

    arguments: keyword arguments of `play`.
    Returns a script of the ops that ran, their results, and the error of the undefined op or None.
    """
    outcome = play(script, torch_version, **arguments)
    at, error = outcome.stopped or (0, None)
    if not isinstance(error, UndefinedBehaviorError):
        return script, outcome, None
    script = script.with_ops(script.ops[:at])
    return script, play(script, torch_version, **arguments), error


class _Player:
    def __init__(
        self, allocator: ReplayAllocator, handles: Mapping[int, int], driver: DriverTrace
    ) -> None:
        self.outcome = ModelAnswer()
        self._driver = driver
        self._allocator = allocator
        self._handles = handles
        self._live: dict[Any, int] = {}
        self._pools: dict[str, Callable[[int], None]] = {
            "e": allocator.end_allocate_to_pool,
            "r": allocator.release_pool,
            "v": allocator.empty_cache,
            "l": allocator.delete_mempool,
        }
        self._plain: dict[str, Callable[..., None]] = {
            "S": allocator.synchronize,
            "e": allocator.empty_cache,
            "m": lambda fraction: allocator.set_per_process_memory_fraction(float(fraction)),
            "c": allocator.set_allocator_settings,
            "k": allocator.reset_peak_memory_stats,
            "K": allocator.reset_accumulated_memory_stats,
        }

    def step(self, op: Op) -> None:
        allocator, live = self._allocator, self._live
        match op:
            case ["a", name, size, stream]:
                live.pop(name, None)
                address = self._allocate(size, self._handles[stream])
                if address is not None:
                    live[name] = address
            case ["f", name]:
                free_in_row(allocator, live.pop(name, None))
            case ["r", name, stream]:
                if name in live:
                    allocator.record_stream(live[name], self._handles[stream])
            case ["s", stream]:
                allocator.synchronize(self._handles[stream])
            case ["P", what, pool, *marks]:
                self._scope(what, pool, marks)
            case [letter, *arguments]:
                self._plain[letter](*arguments)

    def _allocate(self, size: int, stream: int) -> int | None:
        self._driver.dictate(self._allocator)
        try:
            address = malloc_in_row(self._allocator, size, stream)
        except OutOfMemoryError as error:
            self.outcome.messages.append(str(error))
            address = None
        except DriverRefusalError as error:
            self.outcome.messages.append(error.TEXT)
            address = None
        self.outcome.addresses.append(address)
        return address

    def _scope(self, what: str, pool: int, marks: Sequence[Any]) -> None:
        if what == "b":
            no_split, use_on_oom = (bool(mark) for mark in (*marks, 0, 0)[:2])
            self._allocator.begin_allocate_to_pool(pool, no_split=no_split, use_on_oom=use_on_oom)
        else:
            self._pools[what](pool)

    def store_state(self) -> None:
        outcome, number = self.outcome, stream_numbers(self._handles)
        outcome.stats = golden_stats(self._allocator.memory_stats())
        outcome.segments = [golden_segment(s, number) for s in self._allocator.memory_snapshot()]
        outcome.trace = [
            [entry.action, entry.address, entry.size, number(entry.stream)]
            for entry in self._allocator.take_history()
        ]
        active = sum(segment["active_size"] for segment in outcome.segments)
        outcome.trace.append(["snapshot", 0, active, 0])
        self._driver.correct(outcome.trace, outcome.messages)


def malloc_in_row(allocator: ReplayAllocator, size: int, stream: int) -> int | None:
    if allocator.play(((MALLOC, _ONE, size, stream),), {}, []) is None:
        return allocator.take_name(_ONE)
    return allocator.malloc(size, stream)


def free_in_row(allocator: ReplayAllocator, address: int | None) -> None:
    if address is not None and allocator.is_allocated(address):
        allocator.give_name(address, _ONE)
        if allocator.play(((FREE, _ONE, 0, 0),), {}, []) is None:
            return
        allocator.take_name(_ONE)
    allocator.free(address)
