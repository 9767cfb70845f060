"""What a search came to, as frozen values.

Rule: rows are in the order of their rank, the best first; what was not replayed to its end is
marked, and is never the best and never on the front.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.tuning.bounds import Bounds
from allocsim.tuning.cost import Costs
from allocsim.tuning.row import Row
from allocsim.tuning.setting import Setting

__all__ = ["Tuning"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """The outcome of `tune`.

    files: names, and torch_version: the release for all of them.  device_memory: bytes, None
    for a device without end.  baseline: as recorded.  best: None if nothing survives.  front:
    rows that none is better than in memory, driver calls and retries at once.  duplicates:
    settings of the grid that have the effect of another, with that other.  helps: whether the
    best is worth setting; reason: why, or why not, in a sentence.  entries: of all recordings
    together; entries_replayed: by all replays; entries_skipped: passed over in
    them, since they would have changed nothing.  by_device: whether the smallest device decides.
    known: outcomes that a file of results had already.
    """

    files: tuple[str, ...]
    torch_version: str
    device_memory: int | None
    baseline: Row
    rows: tuple[Row, ...]
    best: Row | None
    front: tuple[Row, ...]
    duplicates: tuple[tuple[Setting, Setting], ...]
    bounds: Bounds
    costs: Costs
    helps: bool
    reason: str
    notes: tuple[str, ...]
    entries: int
    entries_replayed: int
    entries_skipped: int
    seconds: float
    by_device: bool
    known: int

    @property
    def saved_bytes(self) -> int:
        """What the best reserves less than the baseline at its peak; 0 without a best."""
        if self.best is None:
            return 0
        return self.baseline.peak_reserved_bytes - self.best.peak_reserved_bytes
