"""Write the memory of the CUDA context after each kind of work to a JSON file.

used: bytes in use on the GPU, minus the bytes in use before the context existed.  A phantom GPU
    does not report the bytes before, so they count as 0.
beside: `used` minus the bytes that PyTorch reserved.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def used_by_nvml() -> int | None:
    """Return the bytes in use on the first device by NVML; None if it does not report them."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, memory = ctypes.c_void_p(), Memory()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
            return None
        if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
            return None
    except (OSError, AttributeError):
        return None
    return int(memory.used)


def work() -> dict[str, Callable[[], object]]:
    """Return a function for each kind of work, by name, in the order to run them."""

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(*shape, device="cuda", dtype=dtype)

    half = torch.bfloat16

    def attention() -> object:
        q = normal(1, 8, 128, 64, dtype=half)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    def layer() -> object:
        model = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model(normal(2, 64, 512)).sum().backward()
        optimizer.step()
        return None

    return {
        "init": torch.cuda.init,
        "fill": lambda: normal(1 << 20),
        "elementwise": lambda: torch.nn.functional.gelu(normal(1 << 20)),
        "matmul fp32": lambda: normal(512, 512) @ normal(512, 512),
        "matmul bf16": lambda: normal(512, 512, dtype=half) @ normal(512, 512, dtype=half),
        "linear bias (lt)": lambda: torch.nn.Linear(512, 512, device="cuda")(normal(64, 512)),
        "attention": attention,
        "conv": lambda: torch.nn.Conv2d(8, 16, 3, device="cuda")(normal(1, 8, 64, 64)),
        "qr": lambda: torch.linalg.qr(normal(64, 64)),
        "fft": lambda: torch.fft.fft(normal(4096)),
        "sort": lambda: normal(1 << 16).sort(),
        "layer, fused adamw": layer,
    }


def main() -> None:
    before = used_by_nvml()
    rows = []
    for what, run in work().items():
        try:
            run()
            torch.cuda.synchronize()
        except RuntimeError as error:
            rows.append({"what": what, "error": str(error).splitlines()[0]})
            continue
        free, total = torch.cuda.mem_get_info()
        now = used_by_nvml()
        used = total - free if now is None or before is None else now - before
        reserved = torch.cuda.memory_reserved()
        rows.append({"what": what, "nvml": used, "beside": used - reserved, "reserved": reserved})
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
