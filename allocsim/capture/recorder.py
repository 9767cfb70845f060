"""Recorder of PyTorch's memory history, shared by all captures of a process.

The recorder is shared because PyTorch has one history per process, and callbacks that are
registered with PyTorch cannot be removed.  A history that the program itself has started is neither
restarted nor stopped.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from allocsim.capture.calls import LASTING, CallLog, Finder, counted_rows
from allocsim.collector import collector_paused

LOG = logging.getLogger("allocsim.capture")
_said: set[str] = set()
# Some PyTorch releases lack the following names; the code checks for the name, not the version:
# - torch.xpu.memory._snapshot (from 2.14 on): without it, XPU memory is not recorded
# - record_pinned_host_memory (from 2.14 on): without it, pinned host memory is not recorded
# - _cuda_isHistoryEnabled: without it, a history that the program started is restarted


def say_once(what: str, *values: object) -> None:
    """Log the warning `what % values`, unless this process has logged `what` before."""
    if what not in _said:
        _said.add(what)
        with contextlib.suppress(Exception):  # a logging handler of the program may fail
            LOG.warning(what, *values)


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` wrapped to log its exceptions and return None in place of raising them."""

    @functools.wraps(function)
    def wrapped(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Exception as error:
            name = function.__name__.strip("_")
            say_once(
                f"allocsim: {name} failed, the program goes on: %s: %s", type(error).__name__, error
            )
            return None

    return wrapped


@dataclass(frozen=True)
class DeviceApi:
    """Names in PyTorch for one type of device; "" if PyTorch has no such function.

    module: name of the device type's module in torch, such as "cuda".
    observer: name of the function of torch._C that registers a callback for out-of-memory errors.
    is_enabled: name of the function of torch._C that returns True while a history is recorded.
    """

    module: str
    observer: str = ""
    is_enabled: str = ""

    def gpu(self, torch: Any) -> Any:
        """Return the module torch.cuda or torch.xpu; None if it has no functions to record memory.

        torch: module torch.
        """
        gpu = getattr(torch, self.module, None)
        memory = getattr(gpu, "memory", None)
        names = ("_record_memory_history", "_snapshot")
        return gpu if all(hasattr(memory, name) for name in names) else None

    def is_recording(self, torch: Any) -> bool:
        """Return True if PyTorch is recording a history now."""
        ask = getattr(torch._C, self.is_enabled, None) if self.is_enabled else None
        return bool(ask()) if ask is not None else False

    def observe(self, torch: Any, observer: Any) -> bool:
        """Register a callback for out-of-memory errors, permanently.

        Return False if PyTorch has no such callbacks for this type of device.
        """
        attach = getattr(torch._C, self.observer, None) if self.observer else None
        if attach is not None:
            attach(observer)
        return attach is not None


BACKENDS = (
    DeviceApi("cuda", "_cuda_attach_out_of_memory_observer", "_cuda_isHistoryEnabled"),
    DeviceApi("xpu"),
)


_MOST_MARKS = 50_000
"""Largest number of marks (records of calls that leave no entry).

Beyond it, the older half is dropped, except marks whose value is still in effect."""


class Listener(Protocol):
    """Methods of a `Capture` that the recorder calls."""

    def on_out_of_memory(self, device: int, free: int) -> None:
        """Handle an out-of-memory error that PyTorch is about to raise.

        free: bytes of the device that the driver reports as free.
        """

    def on_device(self) -> None:
        """Handle the start of recording in this process, which may be a forked process."""

    def moment(self) -> list[tuple[str, object]]:
        """Return the current step and phase of training as pairs, such as ("step", 3)."""


@dataclass(frozen=True)
class Ring:
    """Options of PyTorch's history, a ring buffer that overwrites its oldest entries when full.

    max_entries: largest number of entries per device.
    stacks: kind of stacks to record: "python", "all" (C++ stacks too) or None.
    """

    max_entries: int
    stacks: str | None


@dataclass
class RecordedHistory:
    """Snapshot of the recorded history, and data about the recording.

    snapshot: dictionary that PyTorch's `_snapshot` returns.
    lost: for each device, the number of allocations, frees and out-of-memory errors before the
        first entry of its history, also before recording began; None if unknown.
    missed: number of entries, on all devices, that the ring has overwritten.
    marks: records of calls that leave no entry (`CallLog.marks`).
    conf_at_start: allocator settings (PYTORCH_CUDA_ALLOC_CONF) when recording began; None if
        unknown, or if `snapshot` has the same settings.
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
    """Recorder of PyTorch's memory history in this process, shared by all captures.

    torch: module torch; None until the program imports it.
    gpu: module torch.cuda or torch.xpu; None until the program initialises the GPU.
    calls: recorder of calls that leave no entry; None until recording begins.
    ring: options of the history, from the first of the active captures; None without a capture.
    pid: id of the process whose history is recorded.
    is_on: True while a history is recorded.
    is_ours: True if this recorder started the history, and False if the program did.
    conf_at_start: allocator settings (PYTORCH_CUDA_ALLOC_CONF) when recording began; None if
        unknown.
    base: for each device, the number of allocations, frees and out-of-memory errors before
        recording began.
    held: bytes that were allocated when recording began.
    listeners: active captures.
    """

    torch: Any = None
    gpu: Any = None
    calls: CallLog | None = None
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
        """True if this process records a history; False in a process forked while recording."""
        return self.is_on and self.pid == os.getpid()

    def attach(self, listener: Listener, ring: Ring) -> None:
        """Add the capture `listener`, and begin to record now or when PyTorch uses the GPU."""
        self.listeners.append(listener)
        if self.ring is None:
            self.ring = ring
        elif self.ring != ring:
            say_once("allocsim: another capture is active; its ring and stacks apply to all")
        when_loaded("torch", quiet(self._on_torch))

    def detach(self, listener: Listener) -> None:
        if listener in self.listeners:
            self.listeners.remove(listener)
        if self.listeners:
            return
        self.ring = None
        if self.is_here and self.calls is not None:
            if self.is_ours:
                self.gpu.memory._record_memory_history(None)  # also of pinned memory
            self.calls.unwatch()
        self.is_on = False

    def note(self, kind: str, value: object) -> None:
        """Add a mark for every device.

        kind, value: such as "step" and the number of a training step.
        """
        if self.is_here and self.calls is not None:
            marks = self.calls.marks
            marks += self.calls.marks_of(lambda: (kind, value))
            if len(marks) > _MOST_MARKS:
                self._thin(marks)

    def history(self) -> RecordedHistory | None:
        """Return the history up to now; None if none is recorded or nothing was ever allocated."""
        if not self.is_here or self.calls is None or self.ring is None:
            return None
        calls = self.calls
        with collector_paused():
            # Two counts detect entries that other threads add while the snapshot is taken.
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
        return RecordedHistory(snapshot, lost, missed, list(calls.marks), conf, self.held)

    def _lost(
        self, device: int, trace: list[Any], before: list[int], after: list[int]
    ) -> int | None:
        # Returns the number of counted entries before the first entry of `trace`: the count minus
        # the entries in `trace`, which always has the newest ones.  If another thread adds entries
        # during the snapshot, the result may be None (unknown).
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
                # PyTorch makes this call when it initialises the GPU, or now if it already has.
                gpu._lazy_call(quiet(lambda gpu=gpu, backend=backend: self._on_gpu(gpu, backend)))

    def _on_gpu(self, gpu: Any, backend: DeviceApi) -> None:
        if self.is_here or self.ring is None or not self.listeners:
            return
        self.gpu, self.pid = gpu, os.getpid()
        self.calls = CallLog(self.torch, gpu, lambda: self.is_here)
        self.is_ours = not backend.is_recording(self.torch)
        with contextlib.suppress(Exception):  # optional information
            # This call comes before recording starts, because a snapshot adds an entry.
            self.conf_at_start = _conf_of(gpu.memory._snapshot())
        if self.is_ours:
            gpu.memory._record_memory_history(
                "all",
                context=None if self.ring.stacks is None else "alloc",
                stacks=self.ring.stacks or "python",
                max_entries=self.ring.max_entries,
                **_pinned_argument(gpu.memory),
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
        # An observer is registered once per process, because it cannot be removed.
        if backend.module not in self._observed and backend.observe(self.torch, self._observer):
            self._observed.add(backend.module)

    def _observer(self, device: int, _requested: int, _limit: int, free: int) -> None:
        if self.is_here:
            for listener in tuple(self.listeners):
                listener.on_out_of_memory(device, free)

    def _thin(self, marks: list[Any]) -> None:
        # Of the older half, only the marks that are still in effect are kept.
        last: dict[tuple[int, str], Any] = {}
        half = len(marks) // 2
        for mark in marks[:half]:
            if mark[2] in LASTING:
                last[mark[0], mark[2]] = mark
        marks[:half] = last.values()


def when_loaded(name: str, then: Callable[[Any], Any]) -> None:
    """Call `then(module)` when the module `name` is imported, or now if it already is."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        then(module)
        return
    sys.meta_path.insert(0, Finder(name, then))


def _pinned_argument(memory: Any) -> dict[str, bool]:
    with contextlib.suppress(TypeError, ValueError):  # a function without a signature
        if (
            "record_pinned_host_memory"
            in inspect.signature(memory._record_memory_history).parameters
        ):
            return {"record_pinned_host_memory": True}
    return {}


def _conf_of(snapshot: Any) -> str | None:
    conf = snapshot.get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF")
    return conf if isinstance(conf, str) else None


RECORDER = Recorder()
