"""State of one device of a recording without entries, from which simulated allocators are made."""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.core import PAGE, ReplayAllocator, largest_request
from allocsim.errors import ConfigError, RecordingError
from allocsim.recording import Recording, Trace, refuse_contradictions
from allocsim.replaying.prepare import choose_releases
from allocsim.state import SegmentState
from allocsim.units import format_size, round_up


@dataclass(frozen=True, slots=True)
class StateSource:
    """State of one device of a snapshot, from which simulated allocators are made.

    is_taken_full: True if the size of the device was not given, so that the device is assumed to
        have no free memory.
    """

    torch_version: str
    release_note: str
    conf: str
    device: int
    device_memory: int
    is_taken_full: bool
    segments: tuple[SegmentState, ...]

    def allocator(self) -> ReplayAllocator:
        made = ReplayAllocator(
            self.device_memory, self.conf, self.torch_version, device=self.device
        )
        made.seed(self.segments)
        return made

    def largest_request(self, stream: int = 0) -> int:
        """Return the bytes of the largest request that would succeed on `stream`, or 0."""
        made = self.allocator()
        # A request that is refused makes the allocator empty its cache and try again.
        before = largest_request(made, stream)
        made.empty_cache()
        return max(before, largest_request(made, stream))

    def largest_requests(self) -> dict[int, int]:
        """Return the bytes of the largest request that would succeed, keyed by stream."""
        streams = sorted({0, *(segment.stream for segment in self.segments)})
        return {stream: self.largest_request(stream) for stream in streams}


def state_source(
    recording: Recording,
    trace: Trace,
    conf: str | None = None,
    *,
    device_memory: int | None = None,
    torch_version: str | None = None,
) -> StateSource:
    """Return the state of one device of a recording without entries.

    conf: None for the recorded conf, or the defaults if it is not recorded.
    device_memory: bytes; None to assume a device that is as large as its segments.
    """
    refuse_contradictions(recording)
    if not trace.segments:
        raise RecordingError(recording.path, f"device {trace.device} has no segments")
    possible, note = choose_releases(recording, torch_version)
    if conf is None:
        conf = "" if recording.settings is None else recording.settings.conf
    held = sum(round_up(segment.total_size, PAGE) for segment in trace.segments)
    if device_memory is not None and device_memory < held:
        raise ConfigError(
            f"device memory {format_size(device_memory)} is less than the {format_size(held)} "
            "that the segments of the snapshot hold"
        )
    return StateSource(
        torch_version=possible[-1],
        release_note=note,
        conf=conf,
        device=trace.device,
        device_memory=held if device_memory is None else device_memory,
        is_taken_full=device_memory is None,
        segments=trace.segments,
    )
