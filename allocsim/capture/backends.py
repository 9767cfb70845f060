"""What each kind of PyTorch's devices offers a recorder, as data.

Rule: a difference between releases or builds is a row here or a name that is missing; the rest of
the package asks this table and compares no versions.

| what | where it was looked at |
|---|---|
| torch.cuda.memory: `_record_memory_history` with these arguments, `_snapshot` | 2.6, 2.14, 2.15 |
| the same of torch.xpu.memory; without it nothing is recorded on XPU | 2.14, 2.15; not in 2.6 |
| `_cuda_attach_out_of_memory_observer`, called before an error is raised | 2.6, 2.14, 2.15 |
| `_cuda_isHistoryEnabled`; without it, the program's own history is begun anew | 2.6, 2.14, 2.15 |

ROCm's builds have the names of CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["BACKENDS", "Backend"]


@dataclass(frozen=True)
class Backend:
    """One kind of device.

    module: of torch, as "cuda".  observer: the function of torch._C that takes a callback for
    out-of-memory errors, "" for none.  is_enabled: that which says whether a history is kept.
    """

    module: str
    observer: str = ""
    is_enabled: str = ""

    def gpu(self, torch: Any) -> Any:
        """The device's module; None where this PyTorch cannot record its history."""
        gpu = getattr(torch, self.module, None)
        memory = getattr(gpu, "memory", None)
        names = ("_record_memory_history", "_snapshot")
        return gpu if all(hasattr(memory, name) for name in names) else None

    def is_recording(self, torch: Any) -> bool:
        """Whether the program keeps a history already."""
        ask = getattr(torch._C, self.is_enabled, None) if self.is_enabled else None
        return bool(ask()) if ask is not None else False

    def observe(self, torch: Any, observer: Any) -> bool:
        """Have `observer` called at an out-of-memory error, for good; whether that is possible."""
        attach = getattr(torch._C, self.observer, None) if self.observer else None
        if attach is not None:
            attach(observer)
        return attach is not None


BACKENDS = (
    Backend("cuda", "_cuda_attach_out_of_memory_observer", "_cuda_isHistoryEnabled"),
    Backend("xpu"),
)
