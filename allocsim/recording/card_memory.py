"""Memory of the card of a recording, split between this program and other processes.

Rule: recorded figures are used as they are. Without them, the memory outside PyTorch is split by
the usual size of a CUDA context, and the result is a range.

A context with its libraries took 526 MiB to 870 MiB on an H200 (driver 580, CUDA 13): less before
the first kernel, more with cuSOLVER and a fused optimizer; smaller cards hold less.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from allocsim.recording.provenance import Provenance
from allocsim.units import GIB, KIB, MIB, format_size

__all__ = ["CardMemory", "card_memory"]

CONTEXT = (526 * MIB, 870 * MIB)
"""Lowest and highest bytes of a CUDA context."""
_NOTABLE_BYTES = GIB
_NOTABLE_SHARE = 0.05
_OTHER = re.compile(r"Process \d+ has (\d+\.\d+|\d+) (bytes|[KMG]iB) memory in use")
_OWN = re.compile(r"this process has (\d+\.\d+|\d+) (bytes|[KMG]iB) memory in use")
_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Memory of a card when a recording was written, in bytes.

    outside: in use, but not reserved by this program's PyTorch.
    others_low, others_high: range of the memory of other processes.
    processes: number of other processes; None if unknown.
    is_estimated: True if the memory of other processes is inferred from the usual size of a
    context.
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
        """True if other processes hold a notable part of the card.

        Notable is 1 GiB or 5 % of the card, whichever is less; for an estimate, whichever is more,
        since libraries such as NCCL also hold memory outside PyTorch.
        """
        limits = _NOTABLE_BYTES, int(_NOTABLE_SHARE * self.total)
        return self.others_low >= (max(limits) if self.is_estimated else min(limits))

    @property
    def sentence(self) -> str:
        """Return a sentence about the owners of the card's memory; "" if the card is not shared."""
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
    """Return the use of the card's memory; None if the recording does not contain it.

    made: provenance of the recording.
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
    """Return the bytes of each other process in an out-of-memory text; None if it names none.

    None also if the text does not name its own process, which is then listed among the others.
    """
    if not _OWN.search(text):
        return None
    found = [int(float(size) * _UNITS[unit]) for size, unit in _OTHER.findall(text)]
    return found if sum(found) <= total else None
