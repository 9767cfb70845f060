"""Fake torch for `allocsim.capture`, over the model's allocator.

History, statistics and texts have PyTorch's form, so a captured file can be compared with the
allocator that it was captured from.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.units import MIB

__all__ = ["Pretend"]


class Pretend(types.ModuleType):
    """Fake module torch; log: arguments of each call that started or stopped the history."""

    def __init__(self, memory: int = 64 * MIB, *, is_recording: bool = False) -> None:
        super().__init__("torch")
        self.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
        self.__version__ = "2.15.0"
        self.gpu = CachingAllocator(memory, record_history=True)
        self.log: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.observers: list[Callable[..., None]] = []
        self.ring = 1 << 40
        self.before = 0
        self.is_recording = is_recording
        self.waiting: list[Callable[[], None]] = []
        self.is_initialized = False
        self.blocks: list[int] = []
        memory_module = types.SimpleNamespace(
            _record_memory_history=self._record, _snapshot=self._snapshot
        )
        card = types.SimpleNamespace(name="Pretend", total_memory=memory)
        self.cuda = types.SimpleNamespace(
            memory=memory_module,
            _lazy_call=lambda call: call() if self.is_initialized else self.waiting.append(call),
            memory_stats=lambda _device: self.gpu.memory_stats() if self.is_initialized else {},
            device_count=lambda: 1,
            get_device_properties=lambda _device: card,
            mem_get_info=lambda _device: (self.free, memory),
            empty_cache=self._empty_cache,
        )
        self.distributed: Any = None
        self._C: Any = types.SimpleNamespace(
            _cuda_emptyCache=self.gpu.empty_cache,
            _cuda_isHistoryEnabled=lambda: self.is_recording,
            _cuda_attach_out_of_memory_observer=self.observers.append,
        )

    @property
    def free(self) -> int:
        """Free bytes of the driver."""
        stats = self.gpu.memory_stats()
        total = int(self.cuda.get_device_properties(0).total_memory)
        return total - int(stats["reserved_bytes.all.current"])

    def init(self) -> None:
        """Initialise the device."""
        self.is_initialized = True
        while self.waiting:
            self.waiting.pop(0)()

    def empty(self, size: int) -> int:
        """Allocate and keep a tensor; like PyTorch, call the observers before an error."""
        if not self.is_initialized:
            self.init()
        try:
            address = self.gpu.malloc(size)
        except OutOfMemoryError:
            for observer in self.observers:
                observer(0, size, 0, self.free)
            raise
        assert address is not None
        self.blocks.append(address)
        return address

    def drop(self) -> None:
        """Free the last tensor."""
        self.gpu.free(self.blocks.pop())

    def _empty_cache(self) -> None:
        self._C._cuda_emptyCache()

    def _record(self, *arguments: Any, **named: Any) -> None:
        self.log.append((arguments, named))
        self.is_recording = arguments[0] is not None
        # A snapshot is an entry itself, after the entries that it shows.
        self.before = len(self.gpu.snapshot()["device_traces"][0]) + 1
        self.ring = named.get("max_entries", self.ring)

    def _snapshot(self) -> dict[str, Any]:
        snapshot = self.gpu.snapshot()
        traces = snapshot["device_traces"]
        kept = [trace[self.before :][-self.ring :] for trace in traces]
        return {**snapshot, "device_traces": kept if self.is_recording else []}
