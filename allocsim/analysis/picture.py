"""One device's replay with everything that pictures of it need.

Rule: the replay is the one that `allocsim replay` reports, looked at; nothing here drives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allocsim.analysis.happenings import HistoryWatch
from allocsim.analysis.instant import Instant, instant_of
from allocsim.analysis.lives import Lives, lives_of
from allocsim.analysis.memory_curve import MemoryCurve, memory_curve
from allocsim.analysis.shortage import OomWatch
from allocsim.core import Block, CachingAllocator, find_release, parse_conf
from allocsim.engine import DeviceRun, Progress, Run, SimulatedOom, replay
from allocsim.errors import RecordingError
from allocsim.trace import Recording, Trace

__all__ = ["Picture", "picture_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """watch: what was seen at each out-of-memory error, for `shortages_of`."""

    run: Run
    trace: Trace
    lives: Lives
    curve: MemoryCurve
    watch: OomWatch

    @property
    def device_run(self) -> DeviceRun:
        """The one device's replay."""
        return self.run.devices[0]

    @property
    def is_expandable(self) -> bool:
        """Whether the settings replayed map expandable segments."""
        return parse_conf(self.run.conf, find_release(self.run.torch_version)).expandable_segments

    def at(self, entry: int | None = None) -> Instant:
        """The state after `entry`; None: where reserved memory was highest.

        Raises RecordingError for an entry that was not replayed.
        """
        entry = max(self.device_run.peak.entry, 0) if entry is None else entry
        if not 0 <= entry < self.lives.n_entries:
            what = f"there is no such entry in the replay; expected 0 to {self.lives.n_entries - 1}"
            raise RecordingError(self.run.path, what, entry=entry)
        return instant_of(self.lives, entry, is_expandable=self.is_expandable)


class _Watch(HistoryWatch):
    """The history, and the blocks at each error."""

    def __init__(self) -> None:
        super().__init__()
        self.ooms = OomWatch()

    def out_of_memory(
        self, allocator: CachingAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None:
        """See `Observer`."""
        self.ooms.out_of_memory(allocator, oom, blocks)


def picture_of(
    recording: Recording,
    conf: str | None = None,
    *,
    device_memory: int | str | None = None,
    torch_version: str | None = None,
    device: int | None = None,
    progress: Progress | None = None,
) -> Picture:
    """Replay one device of `recording` and keep what pictures need.

    device: None for the first that has entries.  The others are those of `replay`.
    """
    if device is None:
        busy = [trace.device for trace in recording.devices if len(trace)]
        device = busy[0] if busy else None
    watch = _Watch()
    run = replay(
        recording,
        conf,
        device_memory=device_memory,
        torch_version=torch_version,
        device=device,
        progress=progress,
        observer=watch,
    )
    device_run = run.devices[0]
    trace = recording.device(device_run.device)
    if not len(trace):
        raise RecordingError(recording.path, f"device {trace.device} has no entries to draw")
    lives = lives_of(watch.happenings(trace, device_run), trace, device_run.stopped_at)
    return Picture(run, trace, lives, memory_curve(lives), watch.ooms)
