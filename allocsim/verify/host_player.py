"""Run scripts of pinned host memory on the model.

Blocks have numbers in place of addresses, in the order of their creation, because the C library
chooses the addresses of real pinned memory on a phantom GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from allocsim.errors import AllocsimError, OutOfMemoryError
from allocsim.host import CachingHostAllocator
from allocsim.state import PoolId
from allocsim.verify.script import ModelAnswer, Op, Script

HOST_MEMORY = 1 << 46
"""Bytes that no C library provides at once; scripts request less than a GiB or more than this."""


def play_host(script: Script, torch_version: str) -> ModelAnswer:
    """Run a script on a model of the PyTorch release `torch_version`, and return its results.

    Raises ConfigError if the script's conf is invalid.
    """
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
    """Model that runs a script."""

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
        """Run op number `at`; script.py explains the letters."""
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
        """Store the last statistics and, if the release records them, history and segments."""
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
