"""Device memory of each process, read from the driver's management library (NVML).

Nothing is raised.  Unknown values are left out: without the library, in a container whose process
ids are not those of the host, or if the driver does not report them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Any

__all__ = ["processes_memory"]

_LIBRARY = "libnvidia-ml.so.1"
_MOST_PROCESSES = 1024
_UNKNOWN = (1 << 64) - 1


class _Process(ctypes.Structure):
    """Process on a device, in the layout of versions 2 and 3 of NVML's call."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def processes_memory(
    card: Any, used: int, load: Callable[[str], Any] = ctypes.CDLL
) -> dict[str, int]:
    """Return the bytes of this process and of others, and the number of others.

    card: the device's properties, as PyTorch returns them.
    used: bytes of the device that are not free.
    load: function that opens a library.
    Returns only the known ones of the keys "process_memory", "other_memory", "other_processes".
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
    """Return the bytes that each process holds, by its id."""
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
