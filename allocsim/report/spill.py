"""What lay in the host's memory, for the terminal and for JSON.

Rule: bytes and moments are the replay's; how much slower that is, is a range with its reason, since
nothing recorded tells it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allocsim.engine import DeviceRun, Spill
from allocsim.report.layout import number, row, rows
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.questions.top import Top
    from allocsim.questions.tune import Row, Tuning

__all__ = ["Loan", "spill_document", "spill_rows", "tuning_spill_document", "tuning_spill_rows"]

SLOWER = (10, 63)
"""How many times longer bytes take over PCIe than from the card's own memory: from a T4 (320 GB/s)
with PCIe 4.0 x16 (32 GB/s) to an RTX 4090 (1,008 GB/s) with PCIe 3.0 x16 (16 GB/s)."""
_CATEGORIES = 4


def slowdown(device: DeviceRun, spill: Spill) -> tuple[float, float]:
    """Times as long as a step may take: least and most, if all memory is used alike.

    The least is nothing, where what is spilled lies idle; the most is of a step that does nothing
    but move every byte once, the spilled ones over the slowest way.
    """
    held = max(device.peak_device_bytes, 1)
    return 1.0, 1 + spill.most_bytes / held * (SLOWER[1] - 1)


def spill_rows(device: DeviceRun, top: Top | None = None) -> list[str]:
    """What spilled and when, and what that may cost; nothing for a device that refuses.

    top: who asked for memory once the card was full, where nothing else tells it.
    """
    spill = device.spill
    if spill is None:
        return []
    lent = format_size(spill.lent_bytes)
    if spill.began is None:
        return row("Spill", f"nothing: the card had room for all, none of {lent} was needed")
    began = "from the start" if spill.began < 0 else f"from entry {number(spill.began)} on"
    worst = "at the start" if spill.worst < 0 else f"after entry {number(spill.worst)}"
    _, most = slowdown(device, spill)
    whose = "held by, below: what was asked for since"
    if top is not None:
        largest = [(name, size) for name, size in top.categories.items() if size][:_CATEGORIES]
        shares = (f"{name} {format_size(size)}" for name, size in largest)
        whose = f"asked for since and in use then: {', '.join(shares) or 'nothing'}"
    return rows(
        "Spill",
        [
            f"{format_size(spill.most_bytes)} of {lent} in the host's memory at most, {worst}; "
            f"{began}; {format_size(spill.end_bytes)} at the end",
            f"steps take 1 to {most:.0f} times as long, by how often they touch it: over PCIe "
            f"bytes take {SLOWER[0]} to {SLOWER[1]} times as long",
            f"which bytes it moves is the driver's choice; {whose}",
        ],
    )


def spill_document(device: DeviceRun, spill: Spill, top: Top | None) -> dict[str, Any]:
    """The same for JSON.  top: who asked for memory once the card was full."""
    low, high = slowdown(device, spill)
    return {
        "lent_bytes": spill.lent_bytes,
        "most_bytes": spill.most_bytes,
        "began": spill.began,
        "worst": spill.worst,
        "end_bytes": spill.end_bytes,
        "slowdown": [low, round(high, 3)],
        "owners": {} if top is None else {each.owner: each.bytes for each in top.rows},
    }


@dataclass(frozen=True, slots=True)
class Loan:
    """A card of `card` bytes, and `lent` bytes of the host's memory beside it."""

    card: int
    lent: int

    def spilled(self, tuning: Tuning, found: Row) -> int:
        """What lies in the host's memory at the peak of a setting."""
        context = 0 if tuning.prepared is None else tuning.prepared.context_memory
        return max(found.peak_reserved_bytes + context - self.card, 0)


def tuning_spill_rows(tuning: Tuning, loan: Loan | None) -> list[str]:
    """What spills under the recorded settings and under the best; nothing without a loan."""
    if loan is None:
        return []
    base = format_size(loan.spilled(tuning, tuning.baseline))
    text = f"{base} of {format_size(loan.lent)} in the host's memory under the recorded settings"
    if tuning.best is not None and tuning.best is not tuning.baseline:
        text += f", {format_size(loan.spilled(tuning, tuning.best))} under the best"
    return row("Spill", f"{text}; the card has {format_size(loan.card)}")


def tuning_spill_document(tuning: Tuning, loan: Loan | None) -> dict[str, Any]:
    """The same for JSON, of every setting; nothing without a loan."""
    if loan is None:
        return {}
    return {
        "spill": {
            "card_bytes": loan.card,
            "lent_bytes": loan.lent,
            "baseline_bytes": loan.spilled(tuning, tuning.baseline),
            "rows": {
                each.conf: loan.spilled(tuning, each) for each in tuning.rows if each.survives
            },
        }
    }
