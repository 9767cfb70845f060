"""Fake torch for torch_player, with the model in place of a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.errors import AllocsimError
from allocsim.verify import Script


class Stream:
    """Stream created by PyTorch, or external stream by its handle."""

    def __init__(self, allocator: CachingAllocator, handle: int) -> None:
        self._allocator = allocator
        self.cuda_stream = handle

    def synchronize(self) -> None:
        self._allocator.synchronize(self.cuda_stream)


class Tensor:
    """Memory that is freed with its last reference."""

    def __init__(self, allocator: CachingAllocator, size: int, stream: Stream) -> None:
        self._allocator = allocator
        self._address = None
        self._address = allocator.malloc(size, stream.cuda_stream)

    def __del__(self) -> None:
        self._allocator.free(self._address)

    def data_ptr(self) -> int:
        return self._address or 0

    def record_stream(self, stream: Stream) -> None:
        assert self._address is not None
        self._allocator.record_stream(self._address, stream.cuda_stream)


class FakeTorch:
    """Fake module; names: this release's names of the functions of `torch._C`."""

    def __init__(self, script: Script, release: str, names: tuple[str, str, str]) -> None:
        allocator = CachingAllocator(
            script.device_memory,
            script.conf,
            release,
            address_policy=script.address_policy,
            base_address=script.base_address,
            record_history=True,
        )
        self.allocator = allocator
        self.uint8 = "uint8"
        self._n_streams = 0
        self._current = Stream(allocator, 0)
        begin, end, settings = names
        self._C = SimpleNamespace(
            **{
                begin: lambda _, pool: upstream(allocator.begin_allocate_to_pool, pool),
                end: lambda _, pool: upstream(allocator.end_allocate_to_pool, pool),
                settings: lambda conf: upstream(allocator.set_allocator_settings, conf),
                "_cuda_releasePool": lambda _, pool: upstream(allocator.release_pool, pool),
            }
        )
        self.cuda = SimpleNamespace(
            init=lambda: None,
            mem_get_info=lambda _: (allocator.device.free, allocator.device.total),
            OutOfMemoryError=OutOfMemoryError,
            Stream=self._new_stream,
            ExternalStream=lambda handle, device: Stream(allocator, handle),  # noqa: ARG005
            default_stream=lambda _: self._current,
            set_stream=lambda stream: setattr(self, "_current", stream),
            synchronize=allocator.synchronize,
            empty_cache=lambda: upstream(allocator.empty_cache),
            set_per_process_memory_fraction=allocator.set_per_process_memory_fraction,
            reset_peak_memory_stats=allocator.reset_peak_memory_stats,
            reset_accumulated_memory_stats=allocator.reset_accumulated_memory_stats,
            memory_stats=allocator.memory_stats,
            memory=SimpleNamespace(
                _record_memory_history=lambda *_, **__: None, _snapshot=allocator.snapshot
            ),
        )

    def _new_stream(self, device: int) -> Stream:  # noqa: ARG002
        self._n_streams += 1
        return Stream(self.allocator, 0x7F00_0000_0000 + 0x1230 * self._n_streams)

    def empty(self, size: int, *, dtype: str, device: str) -> Tensor:
        assert (dtype, device) == ("uint8", "cuda")
        return Tensor(self.allocator, size, self._current)


def upstream(function: Any, *arguments: Any) -> None:
    """Call a function and raise its errors as RuntimeErrors, as PyTorch does."""
    try:
        function(*arguments)
    except AllocsimError as error:
        raise RuntimeError(str(error)) from None
