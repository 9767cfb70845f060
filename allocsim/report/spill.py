"""Device memory that the driver keeps in host memory when the card is full, as text and as JSON.

Such memory is called spilled. Its bytes come from a replay on a card enlarged by host memory. The
slowdown is estimated as a range, because no recording contains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allocsim.report.layout import number, row, rows
from allocsim.simulation import DeviceRun, Spill
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top
    from allocsim.analysis.tune import SettingRow, Tuning

SLOWER = (10, 63)
"""Range of the slowdown of a byte over PCIe against the card's memory.

From a T4 (320 GB/s) with PCIe 4.0 x16 (32 GB/s) to an RTX 4090 (1,008 GB/s) with PCIe 3.0 x16 (16
GB/s).
"""
_CATEGORIES = 4


def slowdown(device: DeviceRun, spill: Spill) -> tuple[float, float]:
    """Return the lowest and highest factor by which a training step becomes slower.

    The lowest factor is 1, for a step that does not use the spilled memory. The highest is for a
    step that does nothing but read every byte once, spilled bytes over the slowest link.
    """
    held = max(device.peak_device_bytes, 1)
    return 1.0, 1 + spill.most_bytes / held * (SLOWER[1] - 1)


def spill_rows(device: DeviceRun, top: Top | None = None) -> list[str]:
    """Return lines with the spilled bytes, the first and the worst moment, and the slowdown.

    top: code that requested memory after the card was full; None if it is listed elsewhere.
    Returns [] for a device without host memory.
    """
    spill = device.spill
    if spill is None:
        return []
    lent = format_size(spill.lent_bytes)
    if spill.began is None:
        return row("Spill", f"nothing: everything fitted on the card, none of {lent} was used")
    began = "from the start" if spill.began < 0 else f"from entry {number(spill.began)} on"
    worst = "at the start" if spill.worst < 0 else f"after entry {number(spill.worst)}"
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
    """Return the spilled memory as JSON; `top` has the code that requested it."""
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
    """Host memory lent to a simulated card: a card of `card` bytes, enlarged by `lent` bytes."""

    card: int
    lent: int

    def spilled(self, tuning: Tuning, found: SettingRow) -> int:
        """Return the bytes in host memory at the peak under the setting of `found`."""
        context = 0 if tuning.prepared is None else tuning.prepared.context_memory
        return max(found.peak_reserved_bytes + context - self.card, 0)


def tuning_spill_rows(tuning: Tuning, loan: Loan | None) -> list[str]:
    """Return lines with the spilled bytes under the recorded and the best setting.

    Returns [] if `loan` is None.
    """
    if loan is None:
        return []
    base = format_size(loan.spilled(tuning, tuning.baseline))
    text = f"{base} of {format_size(loan.lent)} in host memory under the recorded settings"
    if tuning.best is not None and tuning.best is not tuning.baseline:
        text += f", {format_size(loan.spilled(tuning, tuning.best))} under the best"
    return row("Spill", f"{text}; the card has {format_size(loan.card)}")


def tuning_spill_document(tuning: Tuning, loan: Loan | None) -> dict[str, Any]:
    """Return the spilled bytes under every setting as JSON; {} if `loan` is None."""
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
