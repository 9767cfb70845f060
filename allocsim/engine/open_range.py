"""Range of a what-if, computed when it is read.

The range covers what the recording does not show: calls of empty_cache that left no entry, and
addresses that the driver chose.  It takes several replays, so it is computed once for each what-if,
and only if `DeviceRun.left_open` is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from allocsim.collector import collector_paused
from allocsim.engine.left_open import leaves_open, peaks_by_address, peaks_left_open
from allocsim.engine.notes import address_range_note, open_notes
from allocsim.engine.prepared import Prepared
from allocsim.engine.proof import needs_probe, parting_of
from allocsim.engine.result import DeviceRun, LeftOpen
from allocsim.engine.setting import Setting

__all__ = ["LeftOpenFinder"]


@dataclass(frozen=True, slots=True)
class LeftOpenFinder:
    """Function that computes `DeviceRun.left_open`; pickling stores the result.

    run: the what-if, without its range.
    tries_addresses: replay with other plausible addresses too.
    found: the result, once it is computed.
    """

    prepared: Prepared
    setting: Setting
    run: DeviceRun
    tries_addresses: bool
    found: list[LeftOpen | None] = field(default_factory=list)

    def __call__(self) -> LeftOpen | None:
        if not self.found:
            self.found.append(self._find())
        return self.found[0]

    @collector_paused()
    def _find(self) -> LeftOpen | None:
        prepared, run = self.prepared, self.run
        if needs_probe(prepared):
            parting_of(prepared)  # this call also examines the moments
        peak = None if run.stopped_at is not None else run.peak_reserved_bytes
        ranges: list[tuple[int, int]] = []
        notes: list[str] = []
        hidden = peaks_left_open(prepared, self.setting, run.device_memory)
        # A range of one value equal to the peak is noted only if calls or a limit are known
        # to be uncertain.
        if hidden is not None and (hidden != (peak, peak) or leaves_open(prepared)):
            ranges.append(hidden)
            notes += open_notes(prepared, run.peak_range_with(hidden))
        if self.tries_addresses:
            placed = peaks_by_address(prepared, self.setting, run.device_memory)
            if placed is not None and placed != (peak, peak):
                ranges.append(placed)
                notes.append(address_range_note(placed, peak))
        if not ranges:
            return None
        lows, highs = zip(*ranges, strict=True)
        return LeftOpen((min(lows), max(highs)), tuple(notes))

    def __reduce__(self) -> tuple[type[partial[LeftOpen | None]], tuple[object, ...]]:
        return partial, (_known, self())


def _known(found: LeftOpen | None) -> LeftOpen | None:
    return found
