"""Marks: records of calls that leave no entry in PyTorch's memory history, such as empty_cache().

A mark is a tuple (device, number of counted entries before the call, kind, value).  Counted entries
are allocations, frees and out-of-memory errors: memory_stats() also counts these, which gives the
position of the call in the history.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

# `allocsim record` loads this file by its path in an interpreter that may lack allocsim.
if TYPE_CHECKING:
    MarkRow = tuple[int, int, str, Any]


class Finder:
    """Import hook in sys.meta_path that calls `then(module)` after the module `name` is imported.

    The hook then removes itself.  If the program only searches for the module, with find_spec, the
    hook stays installed.
    """

    def __init__(self, name: str, then: Callable[[Any], Any]) -> None:
        self.name = name
        self.then = then

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # otherwise the next line would call this method again
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            self.then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


COUNTED = ("alloc", "free_requested", "free_completed", "oom")
"""Actions of counted entries, which are entries of the history that memory_stats() also counts."""
STATISTICS = ("allocation.all.allocated", "allocation.all.freed", "active.all.freed", "num_ooms")
LASTING = ("set_per_process_memory_fraction", "_set_allocator_settings", "step", "phase")
"""Kinds of marks whose value stays in effect until the next mark of the same kind."""

_EMPTIES = ("_cuda_emptyCache", "_xpu_emptyCache", "_accelerator_emptyCache")
_SETTERS = (
    "_cuda_cudaCachingAllocator_set_allocator_settings",
    "_accelerator_setAllocatorSettings",
)
_FRACTIONS = ("_cuda_setMemoryFraction", "_xpu_setMemoryFraction")
_COUNT_RESETS = (
    "_cuda_resetAccumulatedMemoryStats",
    "_xpu_resetAccumulatedMemoryStats",
    "_accelerator_resetAccumulatedStats",
)
_PEAK_RESETS = (
    "_cuda_resetPeakMemoryStats",
    "_xpu_resetPeakMemoryStats",
    "_accelerator_resetPeakStats",
)
"""Functions of torch._C that reset peak statistics; no PyTorch release has all of them."""


class CallLog:
    """List of marks for the calls of this process that leave no entry in PyTorch's history.

    torch: module torch.
    gpu: module torch.cuda or torch.xpu.
    is_noted: function without arguments; marks are added while it returns True.
    marks: marks so far, oldest first.
    """

    def __init__(self, torch: Any, gpu: Any, is_noted: Callable[[], bool]) -> None:
        self.torch = torch
        self.gpu = gpu
        self.is_noted = is_noted
        self.marks: list[MarkRow] = []
        self._counted_before: dict[int, int] = {}
        self._undo: list[Callable[[], None]] = []

    def count(self, device: int) -> int:
        """Return the number of allocations, frees and OOM errors so far on `device`.

        A reset of the statistics by the program does not reset this number.
        """
        stats = self.gpu.memory_stats(device)
        here = sum(stats.get(key, 0) for key in STATISTICS)
        return int(self._counted_before.get(device, 0) + here)

    def counts(self) -> list[int]:
        return [self.count(device) for device in range(self.gpu.device_count())]

    def watch(self) -> None:
        """Replace functions of torch._C, such as `_cuda_emptyCache`, by wrappers that add marks."""
        for name in _EMPTIES:
            self._watch(name, lambda: ("empty_cache", None))
        for name in _SETTERS:
            self._watch(name, lambda conf: ("_set_allocator_settings", str(conf)))
        for name in _FRACTIONS:
            self._watch(
                name,
                lambda fraction, device: (
                    "set_per_process_memory_fraction",
                    float(fraction),
                    device,
                ),
            )
        for name in _COUNT_RESETS:
            self._watch(name, self._on_count_reset)
        for name in _PEAK_RESETS:
            self._watch(name, lambda device: ("reset_peak_memory_stats", None, device))
        pool = getattr(self.gpu, "MemPool", None)
        if pool is not None:
            self._watch_pools(pool)

    def unwatch(self) -> None:
        """Restore the functions that `watch` replaced, except where a library has replaced ours."""
        while self._undo:
            self._undo.pop()()

    def marks_of(self, describe: Callable[..., Any], *args: Any, **named: Any) -> list[MarkRow]:
        """Return one mark for each device that a call affects; [] if the call needs no mark.

        describe: function that is called with `args` and `named`, the arguments of the call.  It
            returns (kind, value, device); (kind, value) if the call affects all devices; None if
            the call needs no mark.
        """
        if not self.is_noted():
            return []
        try:
            described = describe(*args, **named)
            if described is None:
                return []
            kind, value, *devices = described
            devices = devices or range(self.gpu.device_count())
            return [(device, self.count(device), kind, value) for device in devices]
        except Exception:
            return []  # the program must not be affected

    def _watch(self, name: str, describe: Callable[..., Any]) -> None:
        core = getattr(self.torch, "_C", None)
        call = getattr(core, name, None)
        if call is None:
            return

        @functools.wraps(call)
        def watched(*args: Any, **named: Any) -> Any:
            # The position of a mark is before the call; a call that raises gets no mark.
            marks = self.marks_of(describe, *args, **named)
            result = call(*args, **named)
            self.marks += marks
            return result

        self._replace(core, name, watched)

    def _watch_pools(self, pool: Any) -> None:
        make, delete = pool.__init__, getattr(pool, "__del__", None)

        @functools.wraps(make)
        def made(this: Any, *args: Any, **named: Any) -> None:
            make(this, *args, **named)
            self.marks += self.marks_of(lambda: ("MemPool created", list(this.id)))

        def deleted(this: Any) -> None:
            # C++ releases the pool after this method.
            self.marks += self.marks_of(lambda: ("MemPool deleted", list(this.id)))
            if delete is not None:
                delete(this)

        self._replace(pool, "__init__", made)
        self._replace(pool, "__del__", deleted)

    def _replace(self, where: Any, name: str, ours: Any) -> None:
        is_own = name in vars(where)
        before = getattr(where, name, None)

        def undo() -> None:
            if vars(where).get(name) is not ours:
                return
            if is_own:
                setattr(where, name, before)
            else:
                delattr(where, name)

        setattr(where, name, ours)
        self._undo.append(undo)

    def _on_count_reset(self, device: int) -> None:
        self._counted_before[device] = self.count(device)


def counted_rows(entries: Sequence[Any]) -> list[int]:
    return [row for row, entry in enumerate(entries) if entry["action"] in COUNTED]


def placed_marks(
    marks: Iterable[MarkRow], traces: Sequence[Sequence[Any]], lost: Sequence[int | None]
) -> list[dict[str, Any]]:
    """Convert marks (calls without an entry) to dictionaries, with the index of the next entry.

    A mark from before the first entry gets index 0 if its value is still in effect; else it is left
    out.

    marks: marks of all devices, oldest first, as in `CallLog.marks`.
    traces: history of each device, as in "device_traces" of a snapshot.
    lost: for each device, the number of allocations, frees and out-of-memory errors before the
        first entry of its history; None if unknown, and then the marks of the device are left out.
    """
    placed: list[dict[str, Any]] = []
    for device, entries in enumerate(traces):
        before = lost[device] if device < len(lost) else None
        if before is None:
            continue
        rows = counted_rows(entries)
        held: dict[str, dict[str, Any]] = {}
        inside = []
        for where, count, kind, value in marks:
            at = count - before
            if where != device or at > len(rows):  # another device, or after the snapshot
                continue
            entry = rows[at - 1] + 1 if at > 0 else 0
            mark = {"device": device, "entry": entry, "kind": kind, "value": value}
            if at >= 0:
                inside.append(mark)
            elif kind in LASTING:
                held[kind] = mark
        placed += [*held.values(), *inside]
    return placed
