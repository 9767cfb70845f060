"""Parts of a report on spilled memory, as text and as JSON.

Spilled memory is device memory that the driver keeps in host memory when the card is full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allocsim.report.layout import fields, row, rows
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top
    from allocsim.analysis.tune import SettingRow, Tuning
    from allocsim.simulation import DeviceRun, Spill

SLOWER = (10, 63)
"""Lowest and highest factor by which access over PCIe is slower than access to the card's memory.

The lowest is that of a T4 (320 GB/s) with PCIe 4.0 x16 (32 GB/s), the highest that of an RTX 4090
(1,008 GB/s) with PCIe 3.0 x16 (16 GB/s).
"""
_CATEGORIES = 4


def slowdown(device: DeviceRun, spill: Spill) -> tuple[float, float]:
    """Return the lowest and highest factor by which spilled memory makes a training step slower."""
    held = max(device.peak_device_bytes, 1)
    return 1.0, 1 + spill.most_bytes / held * (SLOWER[1] - 1)


def spill_rows(device: DeviceRun, top: Top | None = None) -> list[str]:
    """Return lines on the bytes that the driver moved to the host: amount, entries, slowdown."""
    spill = device.spill
    if spill is None:
        return []
    lent = format_size(spill.lent_bytes)
    if spill.began is None:
        return row("Spill", f"nothing: everything fitted on the card, none of {lent} was used")
    began = "from the start" if spill.began < 0 else f"from entry {spill.began:,} on"
    worst = "at the start" if spill.worst < 0 else f"after entry {spill.worst:,}"
    _, most = slowdown(device, spill)
    whose = "Held by, below, lists what was requested since then"
    if top is not None:
        largest = [(name, size) for name, size in top.categories.items() if size][:_CATEGORIES]
        shares = (f"{name} {format_size(size)}" for name, size in largest)
        whose = f"requested since then and in use: {', '.join(shares) or 'nothing'}"
    return rows(
        "Spill",
        [
            f"at most {format_size(spill.most_bytes)} of {lent} in host memory, {worst}; "
            f"{began}; {format_size(spill.end_bytes)} at the end",
            f"steps take 1 to {most:.0f} times as long, depending on how often they access it: a "
            f"byte takes {SLOWER[0]} to {SLOWER[1]} times as long over PCIe",
            f"the driver chooses which bytes it moves; {whose}",
        ],
    )


def spill_document(device: DeviceRun, spill: Spill, top: Top | None) -> dict[str, Any]:
    """Return as JSON the memory that the driver moved to the host.

    top: owners of the memory requested since the first move; None to leave them out.
    """
    low, high = slowdown(device, spill)
    return {
        **fields(spill, "lent_bytes most_bytes began worst end_bytes"),
        "slowdown": [low, round(high, 3)],
        "owners": {} if top is None else {each.owner: each.bytes for each in top.rows},
    }


@dataclass(frozen=True, slots=True)
class Loan:
    """Simulated card whose driver uses host memory when the card is full.

    card: bytes of the card.
    lent: largest number of bytes of host memory that the driver uses.
    """

    card: int
    lent: int

    def spilled(self, tuning: Tuning, found: SettingRow) -> int:
        """Return the bytes in host memory at the peak of the replay whose results are `found`."""
        context = 0 if tuning.prepared is None else tuning.prepared.context_memory
        return max(found.peak_reserved_bytes + context - self.card, 0)


def tuning_spill_rows(tuning: Tuning, loan: Loan | None) -> list[str]:
    """Return lines with the bytes in host memory under the recorded and the best setting."""
    if loan is None:
        return []
    base = format_size(loan.spilled(tuning, tuning.baseline))
    text = f"{base} of {format_size(loan.lent)} in host memory under the recorded settings"
    if tuning.best is not None and tuning.best is not tuning.baseline:
        text += f", {format_size(loan.spilled(tuning, tuning.best))} under the best"
    return row("Spill", f"{text}; the card has {format_size(loan.card)}")


def tuning_spill_document(tuning: Tuning, loan: Loan | None) -> dict[str, Any]:
    """Return the bytes in host memory under every setting as JSON."""
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
