"""Advice on errors whose text has no sizes that decide the cause, or is of the host's memory."""

from __future__ import annotations

from allocsim.analysis.explain.message_search import Situation, most_idle_of
from allocsim.units import format_size

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
    if (most := most_idle_of(message, figures)) is not None:
        found = [
            "The text ends before the memory that is reserved but unallocated, which decides "
            f"between fragmentation and a full card: paste the rest. At most {format_size(most)} "
            "are idle, less the CUDA context and other memory outside PyTorch."
        ]
    elif figures.tried_bytes is not None and figures.allocated_bytes is not None:
        found = [
            "The text does not show how much memory was free, and without that the cause cannot "
            "be decided; nvidia-smi and similar tools show it."
        ]
    elif figures.tried_bytes is not None:
        found = [
            f"The text shows only the request, {format_size(figures.tried_bytes)}: paste all of "
            "it, with total, free, allocated and reserved memory (PyTorch 2.3 cuts it off after "
            "'GPU'), or give --device-memory."
        ]
    elif message.is_of_nvml:
        found = [_NVML, "torch.cuda.memory_summary() before the failing line has the sizes."]
    elif message.text:
        is_assertion = message.text.startswith("free_upper_bound")
        words = _ASYNC_ASSERTION if is_assertion else _ASYNC
        found = [words if message.is_async else _BARE]
        found.append("nvidia-smi shows whether another process holds the card.")
    else:
        found = [
            "No out-of-memory error was found in this text; paste the line with 'out of memory. "
            "Tried to allocate ...', or the whole traceback."
        ]
    return [*found, RECORD]


def on_host_memory(situation: Situation) -> list[str]:
    first = "The memory of the host (RAM) ran out, not the GPU's: no setting of the GPU can help."
    if situation.message.is_killed:
        first = (
            "The process was killed (signal 9, exit code 137), likely by the kernel because the "
            "memory of the host (RAM) ran out, not the GPU's; dmesg or the cluster's log shows it."
        )
    return [
        first,
        "Load the weights with low_cpu_mem_usage=True or mmap=True; use fewer DataLoader workers "
        "(num_workers) with less prefetch, and pin_memory=False; raise the memory limit of the "
        "container or job (cgroup, --mem).",
    ]
