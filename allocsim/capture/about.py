"""Data about the program and its GPU that a captured file has under the key "allocsim".

CUDA is called only to read the free memory.  At an error CUDA is not called at all, because the
program may be capturing a CUDA graph.  The driver's management library (NVML), which knows the
memory of each process, does not affect CUDA's state and is always called.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from allocsim.capture.calls import counted_rows, placed_marks
from allocsim.capture.files import TEXT_ROOM
from allocsim.capture.recorder import RECORDER, RecordedHistory
from allocsim.units import format_size

AT_ERROR = "at an out-of-memory error"
_LIBRARY = "libnvidia-ml.so.1"
_MOST_PROCESSES = 1024
_UNKNOWN = (1 << 64) - 1


@dataclass(frozen=True)
class About:
    """Data about one captured file.

    occasion: reason for writing the file, such as an out-of-memory error, as text.
    device: device of the out-of-memory error; -1 without an error.
    free: bytes that the driver reported as free at the error; None without an error.
    rank: rank of the process in its distributed job; "" without one.
    max_entries: number of entries that PyTorch's history can hold.
    exit_code: exit code of the program; None if unknown.
    """

    occasion: str
    device: int
    free: int | None
    rank: str
    max_entries: int
    exit_code: int | None = None

    @property
    def is_error(self) -> bool:
        return self.occasion.startswith(AT_ERROR)


def described(
    about: About, history: RecordedHistory, snapshot: dict[str, Any], n_dropped: int
) -> dict[str, Any]:
    """Return the snapshot dictionary to write, with data on the capture under "allocsim".

    snapshot: that of `history`, with as many of its newest entries as fit on the disk.
    n_dropped: number of older entries in `history` that are left out.
    """
    traces = snapshot["device_traces"]
    device = about.device if about.device >= 0 else _largest(snapshot["segments"])
    card = RECORDER.gpu.get_device_properties(device)
    total = int(card.total_memory)
    values: dict[str, Any] = {
        "torch_version": str(RECORDER.torch.__version__),
        "device_name": str(card.name),
        "device_memory": total,
        **_memory(about, device, card),
        "is_phantom": "ALLOCSIM_PHANTOM_MEMORY" in os.environ,
        "command": shlex.join(getattr(sys, "orig_argv", sys.argv)),
        "rank": about.rank,
        "captured": _text(about, history, n_dropped),
    }
    if about.exit_code is not None:
        values["exit_code"] = about.exit_code
    if history.conf_at_start is not None:
        values["conf_at_start"] = history.conf_at_start
    marks = placed_marks(history.marks, traces, _lost(history, traces))
    if marks:
        values["marks"] = marks
    # The last value, because it is overwritten in place when the error's text is known.
    values["oom_text"] = " " * TEXT_ROOM if about.is_error else ""
    return {**snapshot, "allocsim": values}


def _lost(history: RecordedHistory, traces: list[Any]) -> list[int | None]:
    # Index: device.  Value: number of counted entries before `traces`, None if unknown.
    lost: list[int | None] = []
    for device, rest in enumerate(traces):
        before, whole = history.lost[device], history.snapshot["device_traces"][device]
        cut = counted_rows(whole[: len(whole) - len(rest)])
        lost.append(None if before is None else before + len(cut))
    return lost


def _largest(segments: list[Any]) -> int:
    held: dict[int, int] = {}
    for segment in segments:
        device = segment.get("device", 0)
        held[device] = held.get(device, 0) + segment["total_size"]
    return max(held, key=lambda device: held[device]) if held else 0


def _memory(about: About, device: int, card: Any) -> dict[str, int]:
    # The keys are field names of `Provenance`; context_memory is neither free nor reserved by
    # PyTorch.
    total, free = int(card.total_memory), about.free
    try:
        if free is None:
            free = int(RECORDER.gpu.mem_get_info(device)[0])
        stats = RECORDER.gpu.memory_stats(device)
    except Exception:
        return {"context_memory": 0}
    reserved = int(stats.get("reserved_bytes.all.current", 0))
    known = {
        "context_memory": max(total - free - reserved, 0),
        "free_memory": free,
        "reserved_memory": reserved,
    }
    if "ALLOCSIM_PHANTOM_MEMORY" not in os.environ:
        known |= processes_memory(card, total - free)
    return known


def _text(about: About, history: RecordedHistory, n_dropped: int) -> str:
    text = about.occasion
    if history.missed:
        text += (
            f"; its ring of {about.max_entries:,} entries was full, and {history.missed:,} older "
            "ones are lost"
        )
    if n_dropped:
        text += f"; {n_dropped:,} older entries are left out, because the disk had no room"
    if history.held:
        text += f"; recording began when {format_size(history.held)} were allocated"
    return text


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t in versions 2 and 3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def processes_memory(
    card: Any, used: int, load: Callable[[str], Any] = ctypes.CDLL
) -> dict[str, int]:
    """Return "process_memory" and "other_memory" in bytes, and the number of "other_processes".

    The result is empty if NVML is missing, if the driver does not report the values, or in a
    container whose process ids differ from the host's.

    card: properties of the GPU, as torch.cuda.get_device_properties() returns them.
    used: bytes of the GPU that are not free.
    load: function that opens a library.
    """
    with contextlib.suppress(Exception):
        held = _processes(load(_LIBRARY), card)
        own = held.pop(os.getpid(), _UNKNOWN)
        if own != _UNKNOWN:
            return {
                "process_memory": own,
                "other_memory": max(used - own, 0),
                "other_processes": len(held),
            }
    return {}


def _processes(library: Any, card: Any) -> dict[int, int]:
    _check(library.nvmlInit_v2())
    try:
        device = ctypes.c_void_p()
        bus = f"{card.pci_domain_id:08x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
        _check(library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(device)))
        call = getattr(library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        call = call or library.nvmlDeviceGetComputeRunningProcesses_v2
        count, rows = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        _check(call(device, ctypes.byref(count), rows))
        return {row.pid: row.used_memory for row in rows[: count.value]}
    finally:
        library.nvmlShutdown()


def _check(error: int) -> None:
    if error:
        raise OSError(error)
