"""Answer of `allocsim fit --server ENGINE --engine program`, as text and as JSON.

The command starts a real inference server, such as vLLM, on a phantom GPU.  The sizes are those
that the server printed.
"""

from __future__ import annotations

import shlex
from typing import Any

from allocsim.fitting import Started
from allocsim.phantom import starter_of
from allocsim.report.fit_served import COMMANDS, NO_RUN, tokens_of
from allocsim.report.layout import LABEL, fields, row
from allocsim.units import format_size

_NOT_COUNTED = "NCCL's memory is not counted, and that of the CUDA context is assumed"
_WITHOUT = "no values of weights, no tokenizer"


def text(found: Started) -> str:
    lines = row("Verdict", found.headline())
    if found.failure and not found.refusals:
        lines += row("Failed", found.failure)
    for refusal in found.refusals:
        lines += row("Reason", refusal.what)
        lines += row("Helps", refusal.helps)
    parts = [(name, size) for name, size in found.parts() if size]
    if parts:
        lines += row("Memory", _budget(found))
        for name, size in parts:
            lines.append(f"{format_size(round(size)):>{LABEL + 14}}  {name}")
    lines += _memory_rows(found)
    if found.searched:
        lines += row("Largest", _largest(found))
    words = shlex.join(found.arguments)
    if found.fits:
        command = COMMANDS[found.engine.split()[0].lower()].format(found.address)
        lines += row("To paste", (command + words).rstrip())
    elif words:
        lines += row("Arguments", words)
    lines.append("")
    lines += row("Model", f"{found.model}, with {found.engine} and PyTorch {found.torch_version}")
    if found.hollow:
        lines += row("Hollow", f"kernels that did nothing: {_kernel_names(found.hollow)}")
    if found.invented:
        lines += row("Invented", _kernel_names(found.invented))
    lines += row("Note", f"{_NOT_COUNTED}; {_WITHOUT}")
    for note in found.gpu.notes:
        lines += row("Note", note)
    return "\n".join(lines) + "\n"


def _memory_rows(found: Started) -> list[str]:
    lines = []
    if "graphs_bytes" in found.sizes:
        took = found.sizes["graphs_bytes"] + found.sizes.get("prefill_graphs_bytes", 0)
        lines += row("Graphs", f"took {format_size(round(took))} when captured")
    if found.room:
        lines += row("Room", f"{tokens_of(found.room)} tokens{_requests(found)}")
    if any(found.driver.values()):
        low, high = (format_size(each) for each in found.driver_range)
        kernels, nodes, graphs = (f"{each:,}" for each in found.driver.values())
        what = f"{low} to {high} for {kernels} kernels and {nodes} nodes of CUDA graphs"
        if graphs != "0":
            what += f"; NCCL is used in {graphs} graphs"
        lines += row("Driver", what)
    if found.tuning_bytes:
        lines += row("Tuning", _tuning(found.tuning_bytes))
    if found.peak_bytes:
        lines += row("Card", _card(found))
    asleep = [
        f"{format_size(used)} at level {name[-1]}"
        for name, (used, _) in found.stages.items()
        if name.startswith("sleep")
    ]
    if asleep:
        lines += row("Asleep", f"{', '.join(asleep)} stay on the card")
    return lines


def _tuning(size: int) -> str:
    what = f"the driver keeps {format_size(abs(size))} for variants of kernels that Triton tries"
    if size > 0:
        return f"{what} in a first start, such as this; later starts have that much more"
    return f"{what} in a first start; this is a later one"


def _card(found: Started) -> str:
    start, work = (found.stages.get(name, (0, 0))[1] for name in ("start", "requests"))
    peak = f"{format_size(start or found.peak_bytes)} of {format_size(found.gpu.memory)} in use"
    if not work:
        return f"{peak} at the peak"
    return f"{peak} at the peak of the start, {format_size(work)} at that of the requests"


def _largest(found: Started) -> str:
    option = f"--{found.searched}"
    if not found.fits:
        return f"no {option} was found with which it starts"
    if option in found.arguments:
        return f"{option} {found.arguments[found.arguments.index(option) + 1]}, which was started"
    length = found.sizes.get("max_model_len")
    return f"{option} {length:.0f}, the longest of the model" if length else "the engine's default"


def _kernel_names(names: str) -> str:
    # Names are followed by the types and options that the kernel is compiled for.
    return ", ".join(dict.fromkeys(name.partition("_dtype_")[0] for name in names.split(", ")))


def _budget(found: Started) -> str:
    fraction = found.sizes.get("fraction")
    each = "" if found.cards == 1 else " on each card"
    if fraction is None:
        return f"as the engine counts it{each}:"
    budget = format_size(round(found.gpu.memory * fraction))
    name = starter_of(found.engine.split()[0].lower()).fraction.replace("-", "_")
    return f"{budget}{each} at {name} {fraction:g}:"


def _requests(found: Started) -> str:
    most, length = found.sizes.get("concurrency"), found.sizes.get("max_model_len")
    if most is None or length is None:
        return ""
    return f": {most:g} requests of {round(length):,} tokens at once"


def document(found: Started) -> dict[str, Any]:
    parts = {name: round(size) for name, size in found.parts()}
    context = found.gpu.context_memory
    peak = max(found.peak_bytes - context, 0)
    return NO_RUN | {
        "fits": found.fits,
        "may_fit": found.fits,
        **fields(found, "gpu=gpu.name device_memory=gpu.memory"),
        "context_memory": context,
        "peak_reserved_bytes": peak,
        "peak_allocated_bytes": peak,
        "needed_bytes": peak if found.fits else None,
        "process_bytes": [found.peak_bytes, found.peak_bytes],
        "engine": "program",
        **fields(found, "server=engine torch_version seconds"),
        "notes": [f"{_NOT_COUNTED}.", f"{_WITHOUT}.", *found.gpu.notes],
        "breakdown": parts,
        "ranges": {name: [size, size] for name, size in parts.items()},
        "reasons": {},
        "host": {},
        "taken_bytes": None,
        "room_tokens": None if found.room is None else list(found.room),
        "largest": None,
        "paste": " ".join(found.arguments) or None,
        "least": None,
        "tensor_parallel": found.cards,
        "weights": {"format": "as loaded", "bytes": parts.get("weights", 0)},
        "source": f"a start of {found.engine} on a phantom GPU",
        "program": f"{found.engine} {found.model} {' '.join(found.arguments)}".strip(),
        "start": {
            "phase": found.phase.name.lower(),
            "failure": found.failure or None,
            "refusals": [fields(each, "what helps") for each in found.refusals],
            "figures": dict(found.sizes),
            "hollow": found.hollow or None,
            "invented": found.invented or None,
            "driver": {**found.driver, "bytes": list(found.driver_range)},
            "tuning_bytes": found.tuning_bytes or None,
            "stages": {
                name: {"bytes": used, "peak_bytes": peak}
                for name, (used, peak) in found.stages.items()
            },
            "searched": found.searched or None,
        },
    }
