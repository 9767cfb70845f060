"""Advice on an out-of-memory error whose text does not show enough sizes."""

from __future__ import annotations

from allocsim.analysis.explain.message import Situation
from allocsim.units import format_size

SMALLER = (
    "Split the work: a smaller batch or sequence, attention that does not build the whole "
    "matrix (scaled_dot_product_attention), or the model on several cards."
)
RECORD = (
    "To see which lines hold the memory, and to prove a setting, record the run and explain the "
    "recording: python -m allocsim.capture run.pickle -- python train.py"
)
_NVML = (
    "This is an out-of-memory error: PyTorch failed while it wrote the text, because NVML did not "
    "answer. That happens on MIG slices, on Jetson, and if CUDA_VISIBLE_DEVICES names devices that "
    "NVML does not list."
)
_ASYNC = (
    "The text is of the cudaMallocAsync backend, which prints no sizes here. ComfyUI uses this "
    "backend; its log has the sizes."
)
_ASYNC_ASSERTION = (
    "This is an out-of-memory error of the cudaMallocAsync backend: PyTorch failed while it wrote "
    "the text, because the program holds more than the card has. On Windows the driver lends host "
    "memory."
)
_BARE = (
    "The text has no figures: it is of a call outside PyTorch's allocator, such as a library's, or "
    "of PyTorch before 1.0. Paste the line with 'Tried to allocate', if there is one."
)


def without_figures(situation: Situation) -> list[str]:
    message, figures = situation.message, situation.figures
    if message.backend == "CPU":
        return ["This is the host's memory, not a GPU's: no setting of the GPU can help.", SMALLER]
    if figures.tried_bytes is not None and figures.allocated_bytes is not None:
        return [
            "The text does not show how much memory was free, and without that the cause cannot "
            "be decided; nvidia-smi and similar tools show it.",
            RECORD,
        ]
    if figures.tried_bytes is not None:
        return [
            f"The text shows only the request, {format_size(figures.tried_bytes)}: paste all of "
            "it, with total, free, allocated and reserved memory (PyTorch 2.3 cuts it off after "
            "'GPU'), or give --device-memory.",
            RECORD,
        ]
    if message.is_of_nvml:
        return [_NVML, "torch.cuda.memory_summary() before the failing line has the sizes.", RECORD]
    if message.text:
        is_assertion = message.text.startswith("free_upper_bound")
        words = _ASYNC_ASSERTION if is_assertion else _ASYNC
        return [
            words if message.is_async else _BARE,
            "nvidia-smi shows whether another process holds the card.",
            RECORD,
        ]
    return [
        "No out-of-memory error was found in this text; paste the line with 'out of memory. Tried "
        "to allocate ...', or the whole traceback.",
        RECORD,
    ]
