"""State of one device in a snapshot without entries.

All sizes are those of the recorded blocks, without a replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from allocsim._repr import Shown
from allocsim.analysis.picture.states import Instant
from allocsim.errors import RecordingError
from allocsim.ownership import moment_of_state
from allocsim.recording import Recording, Trace, refuse_contradictions
from allocsim.state import ALLOCATED, DEFAULT_POOL, PENDING
from allocsim.units import format_size

STILL_KINDS = {
    "live": "requested and in use",
    "slack": "in live blocks beyond the requested size",
    "pending": "freed, but waiting for work on another stream",
    "private_pool": "idle, but kept for a private pool (a CUDA graph, a MemPool)",
    "interleaved": "idle between live blocks of a segment",
    "whole_segments": "idle in whole segments, which the allocator can release",
}
"""Uses of reserved memory, with descriptions."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Still(Shown):
    """State of one device.

    instant: segments and blocks.
    others: numbers of the recording's other devices.
    """

    path: str
    trace: Trace
    instant: Instant
    others: tuple[int, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to print first; there are none for a recorded state."""
        return ()

    def headline(self) -> str:
        held = f"{format_size(self.instant.reserved)} in {len(self.instant.segments):,} segments"
        return f"{self.path.rsplit('/', 1)[-1]}, device {self.trace.device}: {held}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for kind, size in self.kinds.items():
            yield STILL_KINDS[kind], format_size(size)

    def at(self, moment: str | int | None = None) -> Instant:
        """Return the only state.  Raises RecordingError if `moment` is not None or "end"."""
        moment_of_state(self.path, moment)
        return self.instant

    @property
    def kinds(self) -> dict[str, int]:
        """Reserved bytes of each use in `STILL_KINDS`, including uses with 0 bytes."""
        kinds: Counter[str] = Counter(dict.fromkeys(STILL_KINDS, 0))
        for segment in self.instant.segments:
            idle = "whole_segments" if segment.is_idle else "interleaved"
            idle = idle if segment.pool_id == DEFAULT_POOL else "private_pool"
            for block in segment.blocks:
                if block.state == ALLOCATED:
                    asked = block.requested_size or block.size  # 0 if not recorded
                    kinds["live"] += asked
                    kinds["slack"] += block.size - asked
                else:
                    kinds["pending" if block.state == PENDING else idle] += block.size
        return dict(kinds)


def is_still(recording: Recording, device: int) -> bool:
    """Return True if a device of a recording has segments but no entries.

    Raises RecordingError if there is no such device.
    """
    return recording.device(device).is_state_only


def still_of(recording: Recording, device: int) -> Still:
    """Return the state of a device.

    Raises RecordingError if the device is missing or its state is inconsistent.
    """
    trace = recording.device(device)
    refuse_contradictions(recording)
    if not trace.segments:
        raise RecordingError(recording.path, f"device {device} holds no segments")
    others = tuple(each.device for each in recording.devices if each.device != device)
    return Still(recording.path, trace, Instant(None, trace.segments), others)
