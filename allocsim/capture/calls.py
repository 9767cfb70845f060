"""Calls that change what the allocator does and leave no entry, noted as marks.

Rule: the program behaves as without it: a call is passed on with its arguments, its result and its
exception.  Nothing but the standard library is imported: the recorder of `allocsim record` loads
this file by its path, in an interpreter that need not have allocsim.

A mark is (device, entries counted before it, kind, value); the numbers of entries are those that
the allocator's own statistics tell, so that the place in the history is exact.  The kinds are those
of `allocsim.trace.MarkKind`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # no value: Python 3.8 reads this file, too
    MarkRow = tuple[int, int, str, Any]

__all__ = ["Calls", "counted_rows", "placed_marks"]

COUNTED = ("alloc", "free_requested", "free_completed", "oom")
"""Entries whose number PyTorch's statistics tell; those of segments are not among them."""
STATISTICS = ("allocation.all.allocated", "allocation.all.freed", "active.all.freed", "num_ooms")
LASTING = ("set_per_process_memory_fraction", "_set_allocator_settings", "step", "phase")
"""Kinds of which the last one before a history still holds in it."""

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
"""Functions of torch._C; a release has those that it has."""


class Calls:
    """What is noted in one process.

    torch: the module.  gpu: torch.cuda or torch.xpu.  is_noted: whether marks are wanted now.
    """

    def __init__(self, torch: Any, gpu: Any, is_noted: Callable[[], bool]) -> None:
        self.torch = torch
        self.gpu = gpu
        self.is_noted = is_noted
        self.marks: list[MarkRow] = []
        self._counted_before: dict[int, int] = {}
        self._undo: list[Callable[[], None]] = []

    def count(self, device: int) -> int:
        """How many entries of the kinds COUNTED a device's history would have from the start."""
        stats = self.gpu.memory_stats(device)
        here = sum(stats.get(key, 0) for key in STATISTICS)
        return int(self._counted_before.get(device, 0) + here)

    def counts(self) -> list[int]:
        """`count` of every device."""
        return [self.count(device) for device in range(self.gpu.device_count())]

    def watch(self) -> None:
        """Watch the calls where every way to them ends, however the program imported them."""
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
        """Put back what `watch` took the place of, unless somebody else has since."""
        while self._undo:
            self._undo.pop()()

    def note(self, describe: Callable[..., Any], *args: Any, **named: Any) -> list[MarkRow]:
        """The marks of a call, one a device: how much was recorded before it, and what it is.

        describe: of the call's arguments (kind, value[, device]), or None.
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
            return []  # the program must not notice

    def _watch(self, name: str, describe: Callable[..., Any]) -> None:
        core = getattr(self.torch, "_C", None)
        call = getattr(core, name, None)
        if call is None:
            return

        @functools.wraps(call)
        def watched(*args: Any, **named: Any) -> Any:
            marks = self.note(describe, *args, **named)
            result = call(*args, **named)
            self.marks += marks
            return result

        self._replace(core, name, watched)

    def _watch_pools(self, pool: Any) -> None:
        """Note when a MemPool is made and, while it still holds its memory, deleted."""
        make, delete = pool.__init__, getattr(pool, "__del__", None)

        @functools.wraps(make)
        def made(this: Any, *args: Any, **named: Any) -> None:
            make(this, *args, **named)
            self.marks += self.note(lambda: ("MemPool created", list(this.id)))

        def deleted(this: Any) -> None:
            # What C++ does at the end of a pool comes after this.
            self.marks += self.note(lambda: ("MemPool deleted", list(this.id)))
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
        """PyTorch is about to count a device's entries from 0 again."""
        self._counted_before[device] = self.count(device)


def counted_rows(entries: Sequence[Any]) -> list[int]:
    """The rows of a device's history that the statistics count."""
    return [row for row, entry in enumerate(entries) if entry["action"] in COUNTED]


def placed_marks(
    marks: Iterable[MarkRow], traces: Sequence[Sequence[Any]], lost: Sequence[int | None]
) -> list[dict[str, Any]]:
    """The marks as a snapshot holds them, with the number of entries before each.

    lost: of each device, how many counted entries came before its history's first; None where
    that is unknown, and then its marks are left out.  Of the marks before it, those that last stay.
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
            if where != device or at > len(rows):
                continue
            entry = rows[at - 1] + 1 if at > 0 else 0
            mark = {"device": device, "entry": entry, "kind": kind, "value": value}
            if at >= 0:
                inside.append(mark)
            elif kind in LASTING:
                held[kind] = mark
        placed += [*held.values(), *inside]
    return placed
