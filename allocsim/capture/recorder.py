"""The one recorder of a process, which all its captures share.

Rule: PyTorch keeps one history and calls its observers for good, so that there is one recorder; it
is on while a capture is.  What the program recorded before is neither begun anew nor ended.  In a
forked process it does nothing, until that process begins to use a device itself.

The memory history is asked for when the device is initialised, before the first allocation, and at
once where it is already.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from allocsim.capture.backends import BACKENDS, Backend
from allocsim.capture.calls import LASTING, Calls, counted_rows
from allocsim.capture.finder import Finder
from allocsim.capture.quiet import quiet, say_once
from allocsim.collector import collector_paused

__all__ = ["RECORDER", "History", "Listener", "Recorder", "Ring", "when_loaded"]

_MOST_MARKS = 50_000
"""More are thinned: what was before the ring is no longer of use."""


class Listener(Protocol):
    """A capture, as the recorder knows it."""

    def on_out_of_memory(self, device: int, free: int) -> None:
        """PyTorch is about to raise; free: bytes that the driver has."""

    def on_device(self) -> None:
        """The device is in use from now on, in this process: it may have been forked since."""

    def moment(self) -> list[tuple[str, object]]:
        """The marks of the step and the phase that the program is in."""


@dataclass(frozen=True)
class Ring:
    """What history is asked for.  max_entries: of each device.  stacks: None, "python", "all"."""

    max_entries: int
    stacks: str | None


@dataclass
class History:
    """A snapshot and what is known of it.

    lost: of each device, the counted entries before its first; None where unknown.
    missed: of those the ones that the ring has overwritten, of all devices.
    held: bytes that were allocated when recording began.
    """

    snapshot: Any
    lost: list[int | None]
    missed: int
    marks: list[Any]
    conf_at_start: str | None
    held: int


@dataclass
class Recorder:
    """The state of recording in this process.

    torch: None until it is imported.  ring: what the first capture asked for.
    is_ours: whether the history was begun here and so is ended here.
    """

    torch: Any = None
    gpu: Any = None
    calls: Calls | None = None
    ring: Ring | None = None
    pid: int = 0
    is_on: bool = False
    is_ours: bool = False
    conf_at_start: str | None = None
    base: list[int] = field(default_factory=list)
    held: int = 0
    listeners: list[Listener] = field(default_factory=list)
    _observed: set[str] = field(default_factory=set)

    @property
    def is_here(self) -> bool:
        """Whether this process records: not so in a child that was forked from one that does."""
        return self.is_on and self.pid == os.getpid()

    def attach(self, listener: Listener, ring: Ring) -> None:
        """Record, from now on or from when the device is initialised."""
        self.listeners.append(listener)
        if self.ring is None:
            self.ring = ring
        elif self.ring != ring:
            say_once("allocsim: a capture is on already; its ring and stacks hold for all")
        when_loaded("torch", quiet(self._on_torch))

    def detach(self, listener: Listener) -> None:
        """Record no longer, if no other capture wants it."""
        if listener in self.listeners:
            self.listeners.remove(listener)
        if self.listeners:
            return
        self.ring = None
        if self.is_here and self.calls is not None:
            if self.is_ours:
                self.gpu.memory._record_memory_history(None)
            self.calls.unwatch()
        self.is_on = False

    def note(self, kind: str, value: object) -> None:
        """A mark at this moment, of every device."""
        if self.is_here and self.calls is not None:
            marks = self.calls.marks
            marks += self.calls.note(lambda: (kind, value))
            if len(marks) > _MOST_MARKS:
                self._thin(marks)

    def history(self) -> History | None:
        """What the allocator has recorded; None where it is not recording or nothing was used."""
        if not self.is_here or self.calls is None or self.ring is None:
            return None
        calls = self.calls
        with collector_paused():
            before = calls.counts()
            snapshot = dict(self.gpu.memory._snapshot())
            after = calls.counts()
        traces = snapshot.get("device_traces", [])
        if not any(map(len, traces)) and not snapshot.get("segments"):
            return None
        lost = [self._lost(device, trace, before, after) for device, trace in enumerate(traces)]
        conf = self.conf_at_start if self.conf_at_start != _conf_of(snapshot) else None
        missed = sum(
            max(before - self.base[device], 0)
            for device, before in enumerate(lost)
            if before is not None
        )
        return History(snapshot, lost, missed, list(calls.marks), conf, self.held)

    def _lost(
        self, device: int, trace: list[Any], before: list[int], after: list[int]
    ) -> int | None:
        """The counted entries before the history's first.

        The last entry is the last that was counted, whatever the ring has overwritten or the
        program begun anew; unless another thread has added some meanwhile.
        """
        if device >= len(self.base) or device >= len(after):
            return None
        rows, base = len(counted_rows(trace)), self.base[device]
        if before[device] == after[device]:
            return after[device] - rows if after[device] >= rows else None
        is_whole = before[device] - base <= rows <= after[device] - base
        return base if is_whole and self.is_ours else None

    def _on_torch(self, torch: Any) -> None:
        self.torch = torch
        for backend in BACKENDS:
            gpu = backend.gpu(torch)
            if gpu is not None:
                gpu._lazy_call(quiet(lambda gpu=gpu, backend=backend: self._on_gpu(gpu, backend)))

    def _on_gpu(self, gpu: Any, backend: Backend) -> None:
        """The device is initialised; if just now, then nothing is allocated yet."""
        if self.is_here or self.ring is None or not self.listeners:
            return
        self.gpu, self.pid = gpu, os.getpid()
        self.calls = Calls(self.torch, gpu, lambda: self.is_here)
        self.is_ours = not backend.is_recording(self.torch)
        with contextlib.suppress(Exception):  # it is only to know more
            # Before the history, which would have an entry for it.
            self.conf_at_start = _conf_of(gpu.memory._snapshot())
        if self.is_ours:
            gpu.memory._record_memory_history(
                "all",
                context=None if self.ring.stacks is None else "alloc",
                stacks=self.ring.stacks or "python",
                max_entries=self.ring.max_entries,
            )
        self.is_on = True
        self.base = self.calls.counts()
        self.held = sum(
            gpu.memory_stats(device).get("allocated_bytes.all.current", 0)
            for device in range(gpu.device_count())
        )
        self.calls.watch()
        for listener in self.listeners:
            listener.on_device()
            for kind, value in listener.moment():
                self.note(kind, value)
        if backend.module not in self._observed and backend.observe(self.torch, self._observer):
            self._observed.add(backend.module)

    def _observer(self, device: int, _requested: int, _limit: int, free: int) -> None:
        if self.is_here:
            for listener in tuple(self.listeners):
                listener.on_out_of_memory(device, free)

    def _thin(self, marks: list[Any]) -> None:
        last: dict[tuple[int, str], Any] = {}
        half = len(marks) // 2
        for mark in marks[:half]:
            if mark[2] in LASTING:
                last[mark[0], mark[2]] = mark
        marks[:half] = last.values()


def when_loaded(name: str, then: Callable[[Any], Any]) -> None:
    """Call `then` with a module, now if it is imported and else once it is."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        then(module)
        return
    sys.meta_path.insert(0, Finder(name, then))


def _conf_of(snapshot: Any) -> str | None:
    """The option string in a snapshot; None before 2.3."""
    conf = snapshot.get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF")
    return conf if isinstance(conf, str) else None


RECORDER = Recorder()
