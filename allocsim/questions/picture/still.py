"""One device of a snapshot that holds a state and no history: a moment without a before or after.

Rule: every figure is of the recorded blocks; nothing is replayed, so nothing is proved either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from allocsim.display import Shown
from allocsim.errors import RecordingError
from allocsim.owners import moment_of_state
from allocsim.questions.picture.instant import Instant
from allocsim.state import ALLOCATED, DEFAULT_POOL, PENDING
from allocsim.trace import Recording, Trace, refuse_contradictions
from allocsim.units import format_size

__all__ = ["STILL_KINDS", "Still", "is_still", "still_of"]

STILL_KINDS = {
    "live": "asked for and in use",
    "slack": "in live blocks beyond what was asked for",
    "pending": "freed, but waiting for work on another stream",
    "private_pool": "idle, but kept for a private pool (a CUDA graph, a MemPool)",
    "interleaved": "idle between live blocks of a segment",
    "whole_segments": "idle in whole segments, which the allocator can give back",
}
"""Each kind of reserved memory and what it means, in the order of precedence."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Still(Shown):
    """The state of one device.  others: the recording's other devices."""

    path: str
    trace: Trace
    instant: Instant
    others: tuple[int, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be said before anything else: nothing of what is recorded as it is."""
        return ()

    def headline(self) -> str:
        """Of what, and how much is reserved."""
        held = f"{format_size(self.instant.reserved)} in {len(self.instant.segments):,} segments"
        return f"{self.path.rsplit('/', 1)[-1]}, device {self.trace.device}: {held}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Where the reserved memory is."""
        for kind, size in self.kinds.items():
            yield STILL_KINDS[kind], format_size(size)

    def at(self, moment: str | int | None = None) -> Instant:
        """The one moment there is, whose name is "end"; RecordingError for any other."""
        moment_of_state(self.path, moment)
        return self.instant

    @property
    def kinds(self) -> dict[str, int]:
        """Reserved bytes of each of `STILL_KINDS`, those of no bytes included."""
        kinds: Counter[str] = Counter(dict.fromkeys(STILL_KINDS, 0))
        for segment in self.instant.segments:
            idle = "whole_segments" if segment.is_idle else "interleaved"
            idle = idle if segment.pool_id == DEFAULT_POOL else "private_pool"
            for block in segment.blocks:
                if block.state == ALLOCATED:
                    asked = block.requested_size or block.size  # 0 where it was not written
                    kinds["live"] += asked
                    kinds["slack"] += block.size - asked
                else:
                    kinds["pending" if block.state == PENDING else idle] += block.size
        return dict(kinds)


def is_still(recording: Recording, device: int) -> bool:
    """Whether a device of a recording has segments and no history.

    Raises RecordingError if it is not there.
    """
    return recording.device(device).is_state_only


def still_of(recording: Recording, device: int) -> Still:
    """The state of a device.  Raises RecordingError if it is not there or contradicts itself."""
    trace = recording.device(device)
    refuse_contradictions(recording)
    if not trace.segments:
        raise RecordingError(recording.path, f"device {device} holds no segments")
    others = tuple(each.device for each in recording.devices if each.device != device)
    return Still(recording.path, trace, Instant(None, trace.segments), others)
