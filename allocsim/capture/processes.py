"""Read the GPU memory of each process from the driver's management library (NVML).

No exception is raised.  A value is unknown if the library is missing, if the driver does not report
it, or in a container whose process ids differ from the host's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_MOST_PROCESSES = 1024
_UNKNOWN = (1 << 64) - 1


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
    """Return GPU memory and number of processes: memory of this one, memory and number of others.

    The keys are "process_memory" and "other_memory", in bytes, and "other_processes".  The result
    is empty if the values are unknown.

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
