"""Use of the GPU's memory when a recording was written: by its program and by other processes.

Rule: recorded numbers are used unchanged. If they are missing, the usual size of a CUDA context is
subtracted from the memory in use outside PyTorch. The result is a range for the other processes.

A CUDA context with its libraries took 526 MiB to 870 MiB on an H200 (driver 580, CUDA 13). It is
smallest before the first kernel, and largest with cuSOLVER and a fused optimizer. Smaller GPUs need
less.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from allocsim.recording.provenance import Provenance
from allocsim.units import GIB, KIB, MIB, format_size

CONTEXT = (526 * MIB, 870 * MIB)
"""Lowest and highest bytes of a CUDA context."""
_NOTABLE_BYTES = GIB
_NOTABLE_SHARE = 0.05
_OTHER = re.compile(r"Process \d+ has (\d+\.\d+|\d+) (bytes|[KMG]iB) memory in use")
_OWN = re.compile(r"this process has (\d+\.\d+|\d+) (bytes|[KMG]iB) memory in use")
_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Memory of a GPU when a recording was written, in bytes.

    total: capacity of the GPU.
    outside: memory in use that this program's PyTorch did not reserve.
    others_low, others_high: lowest and highest possible memory of other processes.
    processes: number of other processes; None if unknown.
    is_estimated: True if the range follows from the usual size of a context, and not from a
        recorded number.
    """

    total: int
    outside: int
    others_low: int
    others_high: int
    processes: int | None
    is_estimated: bool

    @property
    def others(self) -> int:
        """Memory of other processes; the middle of the range if it is estimated."""
        return (self.others_low + self.others_high) // 2

    @property
    def context(self) -> int:
        """Memory of this program outside PyTorch: its CUDA context."""
        return max(self.outside - self.others, 0)

    @property
    def is_shared(self) -> bool:
        """True if other processes hold a notable part of the GPU's memory.

        A recorded number is notable from 1 GiB or 5 % of the GPU on, whichever is less.  An
        estimate is notable from the larger of both on, because libraries such as NCCL also hold
        memory outside PyTorch.
        """
        limits = _NOTABLE_BYTES, int(_NOTABLE_SHARE * self.total)
        return self.others_low >= (max(limits) if self.is_estimated else min(limits))

    @property
    def sentence(self) -> str:
        """Sentence about the memory of other processes on the GPU; "" if it is not notable."""
        if not self.is_shared:
            return ""
        total = format_size(self.total)
        who = "another process holds"
        if self.processes is not None and self.processes > 1:
            who = f"{self.processes} other processes hold"
        if not self.is_estimated:
            left = format_size(self.total - self.others)
            held = format_size(self.others)
            return f"{who} {held} of {total} on this card; {left} were left for this program"
        held, left = f"{self.others / GIB:.1f} GiB", f"{(self.total - self.others) / GIB:.1f} GiB"
        return (
            f"{who} about {held} of {total} on this card, or several do together; about {left} "
            "were left for this program (estimated: what is in use outside PyTorch, less a usual "
            "CUDA context)"
        )


def card_memory(made: Provenance | None) -> CardMemory | None:
    """Return the use of the GPU's memory; None if the recording does not contain it.

    made: provenance of the recording, or None.
    """
    if made is None or not made.device_memory:
        return None
    total, outside = made.device_memory, made.context_memory
    if made.other_memory is not None:
        others = min(made.other_memory, total)
        return CardMemory(
            total, max(outside, others), others, others, made.other_processes, is_estimated=False
        )
    if not outside:
        return None
    if made.is_phantom:
        return CardMemory(total, outside, 0, 0, 0, is_estimated=False)
    printed = _printed(made.oom_text, total)
    if printed is not None:
        others = min(sum(printed), outside)
        return CardMemory(total, outside, others, others, len(printed), is_estimated=False)
    low, high = (max(outside - each, 0) for each in reversed(CONTEXT))
    return CardMemory(total, outside, low, high, None, is_estimated=True)


def _printed(text: str, total: int) -> list[int] | None:
    """Return the bytes of each other process that an out-of-memory error lists.

    text: message of the error.
    total: bytes of the GPU.
    Return None if the message has no line about its own process, because the list of others then
    includes it, or if the bytes exceed the GPU.
    """
    if not _OWN.search(text):
        return None
    found = [int(float(size) * _UNITS[unit]) for size, unit in _OTHER.findall(text)]
    return found if sum(found) <= total else None
