"""Interfaces of PyTorch's device types that a recorder needs, as data.

Rule: a difference between releases or builds is a row of this table or a missing name; the rest of
the package uses the table and compares no versions.

| interface | found in |
|---|---|
| torch.cuda.memory: `_record_memory_history` with these arguments, `_snapshot` | 2.6, 2.14, 2.15 |
| the same of torch.xpu.memory; without it, XPU is not recorded | 2.14, 2.15; not in 2.6 |
| `_cuda_attach_out_of_memory_observer`, called before an error is raised | 2.6, 2.14, 2.15 |
| `_cuda_isHistoryEnabled`; without it, the program's own history is restarted | 2.6, 2.14, 2.15 |

ROCm builds have the names of CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["BACKENDS", "Backend"]


@dataclass(frozen=True)
class Backend:
    """One type of device.

    module: name of its module in torch, such as "cuda".
    observer: function of torch._C that takes a callback for out-of-memory errors; "" for none.
    is_enabled: function of torch._C that reports if a history is recorded; "" for none.
    """

    module: str
    observer: str = ""
    is_enabled: str = ""

    def gpu(self, torch: Any) -> Any:
        """Return the device's module; None if this PyTorch cannot record its history."""
        gpu = getattr(torch, self.module, None)
        memory = getattr(gpu, "memory", None)
        names = ("_record_memory_history", "_snapshot")
        return gpu if all(hasattr(memory, name) for name in names) else None

    def is_recording(self, torch: Any) -> bool:
        """Return True if the program already records a history."""
        ask = getattr(torch._C, self.is_enabled, None) if self.is_enabled else None
        return bool(ask()) if ask is not None else False

    def observe(self, torch: Any, observer: Any) -> bool:
        """Register `observer` for out-of-memory errors, permanently; return False if impossible."""
        attach = getattr(torch._C, self.observer, None) if self.observer else None
        if attach is not None:
            attach(observer)
        return attach is not None


BACKENDS = (
    Backend("cuda", "_cuda_attach_out_of_memory_observer", "_cuda_isHistoryEnabled"),
    Backend("xpu"),
)
