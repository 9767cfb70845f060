"""PyTorch's functions to record a history, by device type (CUDA, XPU).

Rule: a release or build of PyTorch may lack a function.  The recorder checks if the function exists
and never compares versions.

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


@dataclass(frozen=True)
class DeviceApi:
    """Functions of one device type.

    module: name of its module in torch, such as "cuda".
    observer: name of the function of torch._C that registers a callback for out-of-memory errors.
    is_enabled: name of the function of torch._C that reports if a history is recorded.
    An empty name means that the device type has no such function.
    """

    module: str
    observer: str = ""
    is_enabled: str = ""

    def gpu(self, torch: Any) -> Any:
        """Return torch.cuda or torch.xpu; None if this PyTorch cannot record its history."""
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
    DeviceApi("cuda", "_cuda_attach_out_of_memory_observer", "_cuda_isHistoryEnabled"),
    DeviceApi("xpu"),
)
