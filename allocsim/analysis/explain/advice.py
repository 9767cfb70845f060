"""Advice on an out-of-memory error for each cause, from its sizes and the settings of the run.

No advice names a setting that is already set, that the release lacks, or that cannot help with
these sizes; tests/explain/test_situations.py checks with replays that the advice helps.
"""

from __future__ import annotations

from collections.abc import Callable

from allocsim.analysis.explain.cause import Figures
from allocsim.analysis.explain.message_search import Situation, most_idle_of
from allocsim.units import GIB, MIB, format_size

_SMALLER = (
    "Split the work: a smaller batch or sequence, attention that does not build the whole "
    "matrix (scaled_dot_product_attention), or the model on several cards."
)
_LARGEST_OF_INTEL = 4 * GIB  # largest single allocation of Level Zero by default
_SHARED_SEGMENTS = {
    2 * MIB: "2.00 MiB is the segment of a request of 1 MiB or less: idle memory of the large pool "
    "cannot serve it.",
    20 * MIB: "20.00 MiB is the segment of a request between 1 and 10 MiB.",
}
"""Dictionary from the bytes of a segment that several requests share to a text on this size."""

_SHAPE = (
    "First look at the line that made the request: this size is usually a wrong shape, a wrong "
    "index or an accidental broadcast."
)
_MODEL = (
    "Training: a smaller batch with gradient accumulation, activation checkpointing, bf16 "
    "instead of fp32, an optimizer with less state (8-bit or sharded).",
    "Inference: torch.inference_mode(), a smaller KV cache (context length, sequences at "
    "once), quantized weights, or a model over several cards.",
)
_REUSE = (
    "Without settings: allocate the largest shape first, pad to few distinct shapes, and call "
    "torch.cuda.empty_cache() before the phase that fails."
)
_RECORD = (
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
OF_PROGRAMS = frozenset((_SMALLER, _SHAPE, *_MODEL, _REUSE, _RECORD))
"""Advice that is for the user's own program only; it is left out for a serving engine."""


def _impossible(situation: Situation) -> list[str]:
    figures = situation.figures
    tried, total = figures.tried_bytes or 0, figures.total_bytes or 0
    if figures.largest_bytes is not None:
        return [_single_allocation(figures.largest_bytes), _SMALLER]
    if not tried or not total:
        return ["No allocator setting can help: the request alone is larger than any card.", _SHAPE]
    found = [
        f"No allocator setting can help: the request alone, {format_size(tried)}, is more than "
        f"the whole card, {format_size(total)}."
    ]
    found += [_SHAPE, _SMALLER] if tried >= 4 * total else [_SMALLER, _SHAPE]
    if situation.message.backend == "HIP":
        found.append(
            f"If the card has more than {format_size(total)}: with unified memory the driver "
            "counts only what the firmware set aside for the GPU."
        )
    return found


def _single_allocation(largest: int) -> str:
    return (
        f"Intel's driver refuses single allocations above {format_size(largest)} by default, even "
        "if more is free. UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 removes this limit, if the "
        "driver supports it."
    )


def _host_fallback(situation: Situation) -> list[str]:
    figures = situation.figures
    live, total = figures.allocated_bytes or 0, figures.total_bytes or 0
    over = live + (figures.tried_bytes or 0) - total
    return [
        "No allocator setting can help: PyTorch holds more memory than the card has, so the driver "
        "(Windows, WSL) has moved a part to the host's memory, which is slow and is used up too.",
        f"To fit without host memory, the program must allocate {format_size(over)} less, "
        "including this request.",
        "To get an error before the slowdown, set NVIDIA Control Panel, CUDA - Sysmem Fallback "
        "Policy, to Prefer No Sysmem Fallback.",
        *_MODEL,
    ]


def _fraction_limit(situation: Situation) -> list[str]:
    figures = situation.figures
    share = ""
    if (limit := figures.limit_bytes) is not None and figures.total_bytes:
        share = f" ({format_size(limit)}, {limit / figures.total_bytes:.3g} of the card)"
    found = [
        f"A memory fraction refused the request, not the card{share}: look for "
        "torch.cuda.set_per_process_memory_fraction in the program, its tests and its libraries, "
        "and raise or remove it."
    ]
    if situation.config is not None and situation.config.per_process_memory_fraction < 1.0:
        found.insert(
            0,
            "Raise or remove per_process_memory_fraction:"
            f"{situation.config.per_process_memory_fraction!r}, which is set.",
        )
    idle, tried = figures.idle, figures.tried_bytes
    if idle is not None and tried is not None and idle >= tried:
        found.append(
            f"{format_size(idle)} within the limit are idle, which is enough for the request, but "
            "in pieces, or kept for another pool or stream."
        )
        found += _expandable(situation)
    return found


def _apple_limit(figures: Figures) -> list[str]:
    rest = max(0, (figures.process_bytes or 0) - (figures.allocated_bytes or 0))
    return [
        f"First free other memory of this process: {format_size(rest)} are outside PyTorch's "
        "allocator and count against the limit.",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO sets the limit; 0.0 removes it, and then the whole "
        "machine may run out of memory. torch.mps.empty_cache() releases cached memory.",
        *_MODEL,
    ]


def _free_above_request(situation: Situation) -> list[str]:
    figures = situation.figures
    backend, tried = situation.message.backend, figures.tried_bytes or 0
    is_large_for_intel = backend == "XPU" and tried >= _LARGEST_OF_INTEL
    return [
        "No setting of PyTorch's allocator can help: the driver refused although "
        f"{format_size(figures.free_bytes or 0)} are free, so this is not fragmentation.",
        *[_single_allocation(_LARGEST_OF_INTEL)] * is_large_for_intel,
        *_close_limit(figures),
        *_hidden_fraction(situation),
        "Look for another process that held memory at the request and ended before free memory "
        "was read, which happens after the failure (nvidia-smi; several ranks on one card).",
        "Look at the host: the driver also refuses if RAM or the page file (Windows) is used up, "
        "under container or ulimit -v limits, and if it does not match the toolkit.",
    ]


def _close_limit(figures: Figures) -> list[str]:
    # The printed sizes are rounded, so a request just within the limit may exceed it.
    held, limit = figures.limited, figures.limit_below_capacity
    if held is None or limit is None or figures.tried_bytes is None:
        return []
    if held + figures.tried_bytes + figures.doubt(held, figures.tried_bytes, limit) <= limit:
        return []
    return [
        f"First look for torch.cuda.set_per_process_memory_fraction: {format_size(held)} are held "
        f"of {format_size(limit)} allowed, so the request may exceed the limit by less than the "
        "text shows."
    ]


def _hidden_fraction(situation: Situation) -> list[str]:
    figures = situation.figures
    held, tried, total = figures.reserved, figures.tried_bytes, figures.capacity
    # Releases up to 2.4 do not print the limit.
    is_printed = situation.release is not None and situation.release.prints_limit
    is_cuda = situation.message.backend not in ("XPU", "NPU", "MPS")
    if is_printed or not is_cuda or figures.limit_bytes is not None:
        return []
    if held is None or not tried or not total:
        return []
    twentieths = -(-20 * held // total)
    limit = total * twentieths // 20
    if not 0 < twentieths < 20 or held + tried + figures.doubt(held, tried) < limit:
        return []
    return [
        "First look for torch.cuda.set_per_process_memory_fraction (up to PyTorch 2.4 the text "
        f"does not show it): PyTorch holds {held / total:.3f} of the card, and this request "
        f"would exceed {twentieths / 20:g} of it."
    ]


def _fragmentation(situation: Situation) -> list[str]:
    figures = situation.figures
    if not situation.has_native_allocator:
        return [f"{format_size(figures.idle or 0)} are idle, but in pieces.", _REUSE, *_MODEL]
    found = [*_expandable(situation), *_split_limit(situation)]
    idle, reserved = figures.idle, figures.reserved
    if idle is not None and reserved and idle * 20 < reserved:
        weight = (
            f"Only {idle / reserved:.1%} of PyTorch's memory is idle, so a setting may serve this "
            "request but not much more: a program that allocates less helps more."
        )
        found = [weight, *found]
    if figures.pool_bytes:
        found.append(
            f"{format_size(figures.pool_bytes)} belong to private pools (CUDA graphs), which "
            "no other request can use: capture fewer sizes, or share one pool."
        )
    if figures.tried_bytes in _SHARED_SEGMENTS:
        found.append(_SHARED_SEGMENTS[figures.tried_bytes])
    return [*found, *foreign(situation), _REUSE, _RECORD]


def _expandable(situation: Situation) -> list[str]:
    if not situation.has_native_allocator:
        return []
    if situation.is_expandable:
        return [
            "expandable_segments:True is set already, so the idle memory is kept for another "
            "stream, for small requests or for a private pool, or is in pages of 20 MiB that other "
            "blocks use too; no setting joins these."
        ]
    if not situation.knows("expandable_segments"):
        return ["Upgrade to PyTorch 2.1 or later, where expandable_segments:True addresses this."]
    if situation.is_windows:
        return [
            "expandable_segments:True would address this but is not available on Windows, and "
            "this text has Windows paths."
        ]
    limits = "on Windows, WSL or Jetson, with CUDA IPC, or in pools with a custom allocator."
    if situation.message.backend == "HIP":
        limits = "below ROCm 7, where PyTorch ignores it; crashes with it were reported."
    return [
        f"Set {situation.variable}=expandable_segments:True before the program starts: segments "
        "then grow in place, and idle pieces can be unmapped and used again.",
        f"It is not available {limits}",
    ]


def _split_limit(situation: Situation) -> list[str]:
    if situation.is_expandable or not situation.knows("max_split_size_mb"):
        return []
    if situation.max_split_size_mb is not None:
        return [
            f"max_split_size_mb:{situation.max_split_size_mb} is set already and did not "
            "prevent the error; remove it when expandable_segments is set."
        ]
    return [
        "If that is not available, max_split_size_mb keeps large blocks whole; its value depends "
        "on the program's sizes, so find it by replaying a recording."
    ]


def _fragmentation_likely(situation: Situation) -> list[str]:
    if situation.is_expandable:
        text = "expandable_segments:True is set already; no other setting joins idle and free "
        return [f"{text}memory.", *foreign(situation), *_MODEL, _RECORD]
    idle = format_size(situation.figures.idle or 0)
    free = format_size(situation.figures.free_bytes or 0)
    return [
        f"Neither {idle} idle nor {free} free memory is enough alone: only settings that return "
        "idle memory to the driver can help, and only by a small margin.",
        *_fragmentation(situation),
    ]


def _full(situation: Situation) -> list[str]:
    figures = situation.figures
    tried, free, idle = figures.tried_bytes or 0, figures.free_bytes or 0, figures.idle
    if situation.message.backend == "MPS":
        return _apple_limit(figures)
    short = format_size(max(0, tried - free - (idle or 0)))
    if figures.has_little_idle and tried <= free + (idle or 0):
        first = (
            f"No allocator setting can help much: at most {format_size(idle or 0)} are fragmented, "
            "and all other memory of PyTorch is in use."
        )
    elif figures.free_bytes is None:
        first = (
            "No allocator setting can help: the memory that is not allocated is less than the "
            "request."
        )
    elif idle is None:
        first = f"The card is full: {short} are missing; the text does not show idle memory."
    else:
        first = (
            f"No allocator setting can help: with every idle byte used, {short} would still be "
            "missing."
        )
    return [first, *foreign(situation), *_MODEL, _RECORD]


def foreign(situation: Situation) -> list[str]:
    figures = situation.figures
    held, total, free = figures.reserved, figures.total_bytes, figures.free_bytes
    own = figures.process_bytes
    others = [(pid, size) for pid, size in situation.message.others if size != own]
    if others:
        named = ", ".join(f"process {pid} {format_size(size)}" for pid, size in others[:4])
        return [f"Other processes hold memory on this card: {named}. End them or use another card."]
    if held is None or total is None or free is None or situation.message.backend == "MPS":
        return []
    rest = total - free - max(held, min(own or 0, total))
    if rest < max(GIB, total // 10):
        return []
    return [
        f"About {format_size(rest)} are held outside this process's PyTorch: other processes, "
        "or libraries in this one; nvidia-smi lists them. Free those first."
    ]


def _without_figures(situation: Situation) -> list[str]:
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
    return [*found, _RECORD]


def _on_host_memory(situation: Situation) -> list[str]:
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


BY_CAUSE: dict[str, Callable[[Situation], list[str]]] = {
    "impossible": _impossible,
    "host_fallback": _host_fallback,
    "fraction_limit": _fraction_limit,
    "free_above_request": _free_above_request,
    "fragmentation": _fragmentation,
    "fragmentation_likely": _fragmentation_likely,
    "full": _full,
    "host_memory": _on_host_memory,
    "no_figures": _without_figures,
}
"""Dictionary from the cause of an error to the function that returns the advice."""
