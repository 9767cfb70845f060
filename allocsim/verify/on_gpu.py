"""Adapt a script to a real GPU, whose memory and timing a script cannot choose.

Rule: the results must be reproducible, and the GPU is never filled.  After each free the script
waits for the whole GPU, so that every CUDA event is complete at the next request.  Frees that an
open scope defers record their events later, so a script has either scopes or record_stream.  The
memory of the script's device becomes a memory fraction, small enough for several scripts at a time.
The address of a segment whose handles the driver refused is unknown, so only the settings at the
start of a script may request such handles.

The sentences about other processes are removed from error texts, because their numbers come from
the driver.  A sentence is removed only if it has exactly the words that PyTorch writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from allocsim.core import Release
from allocsim.verify.script import Op, Script

_MOST = 0.5
"""Share of the GPU's memory that all concurrent scripts together may use."""
_FRACTION = re.compile(r"\bper_process_memory_fraction:([\d.]+)")
_ODD_SEGMENTS = re.compile(r"\blarge_segment_size_mb:(\d*[13579])\b")


def on_gpu(script: Script, release: Release, device_memory: int, jobs: int = 1) -> Script:
    """Adapt a script to a GPU of `device_memory` bytes that runs `jobs` scripts at once."""
    share = min(_MOST / jobs, script.device_memory / device_memory)
    defers = release.scope_is_capture and any(op[0] == "P" for op in script.ops)
    kept = (op for op in script.ops if not (defers and op[0] == "r"))
    ops = [["m", share], *_ops(kept, share)]
    conf = _within(script.conf, share)
    return replace(script, ops=ops, conf=conf, device_memory=device_memory)


def _ops(ops: Iterator[Op], share: float) -> Iterator[Op]:
    for op in ops:
        if op[0] == "m":
            yield ["m", float(op[1]) * share]
        elif op[0] == "c":
            yield ["c", _ODD_SEGMENTS.sub(_next_even, _within(op[1], share))]
        else:
            yield op
        if op[0] == "f":
            yield ["S"]


def _within(conf: str, share: float) -> str:
    """Return `conf` with its memory fraction multiplied by `share`."""
    return _FRACTION.sub(
        lambda match: f"per_process_memory_fraction:{float(match[1]) * share:.6f}", conf
    )


def _next_even(match: re.Match[str]) -> str:
    return f"large_segment_size_mb:{int(match[1]) + 1}"


_SIZE = r"\d+ bytes|\d+\.\d\d [KMG]iB"
_PROCESS = re.compile(
    r"(?:Including non-PyTorch memory, (?P<own>this process)|Process (?P<number>[1-9]\d*))"
    rf" has (?P<size>{_SIZE}) memory in use\. "
)
_BEFORE = re.compile(rf"of which (?:{_SIZE}) is free\. ")


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """GPU memory of a process.

    number: process id; None for the process that printed the text.
    size: memory as printed, e.g. "1.50 GiB".
    """

    number: int | None
    size: str


def without_processes(text: str) -> tuple[str, tuple[ProcessMemory, ...]]:
    """Return the text without the sentences about processes, and the removed processes in order.

    The sentences follow the sentence about free memory.  A text without that sentence, or with two
    sentences about its own process, is returned unchanged.
    """
    before = _BEFORE.search(text)
    if before is None:
        return text, ()
    at = before.end()
    found: list[ProcessMemory] = []
    while (match := _PROCESS.match(text, at)) is not None:
        number = None if match["own"] else int(match["number"])
        found.append(ProcessMemory(number, match["size"]))
        at = match.end()
    if [process.number for process in found].count(None) > 1:
        return text, ()
    return text[: before.end()] + text[at:], tuple(found)
