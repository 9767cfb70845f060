"""Allocator in the state of a snapshot that has no history.

The segments are recorded.  The free memory of the device is unknown.  It is assumed to be zero,
unless the memory of the device is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.core import PAGE, ReplayAllocator, largest_request
from allocsim.errors import ConfigError, RecordingError
from allocsim.recording import Recording, Trace, refuse_contradictions
from allocsim.replaying.prepare import choose_releases
from allocsim.state import SegmentState
from allocsim.units import format_size, round_up


@dataclass(frozen=True, slots=True)
class StateSource:
    """State of one device of a snapshot, from which allocators are made.

    torch_version: release to model.
    release_note: sentence that gives the reason for `torch_version`.
    device: number of the CUDA device.
    device_memory: memory of the device in bytes.
    is_taken_full: `device_memory` was not given, and is the size of the segments.
    """

    torch_version: str
    release_note: str
    conf: str
    device: int
    device_memory: int
    is_taken_full: bool
    segments: tuple[SegmentState, ...]

    def allocator(self) -> ReplayAllocator:
        """Return a new allocator with the segments and blocks of the snapshot."""
        made = ReplayAllocator(
            self.device_memory, self.conf, self.torch_version, device=self.device
        )
        made.seed(self.segments)
        return made

    def largest_request(self, stream: int = 0) -> int:
        """Return the bytes of the largest request that would succeed on `stream`, or 0.

        The allocator may return cached segments to the driver for it.
        """
        made = self.allocator()
        # A request that is refused makes the allocator empty its cache and try again.
        before = largest_request(made, stream)
        made.empty_cache()
        return max(before, largest_request(made, stream))

    def largest_requests(self) -> dict[int, int]:
        """Return `largest_request` of the default stream and of each stream with segments."""
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
    """Return the state of one device of a recording without a history.

    conf: None for the recorded conf, or the defaults if it is not recorded.
    device_memory: bytes; None for the size of the segments.
    torch_version: release to model; None to choose it from the recording.
    Raises RecordingError for segments that contradict each other, and ConfigError for an unknown
    release or a device that is smaller than its segments.
    """
    refuse_contradictions(recording)
    if not trace.segments:
        raise RecordingError(recording.path, f"device {trace.device} has no segments")
    possible, note = choose_releases(recording, torch_version)
    if conf is None:
        conf = "" if recording.settings is None else recording.settings.conf
    held = _pages(trace.segments)
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


def _pages(segments: Sequence[SegmentState]) -> int:
    """Return the bytes that the segments take on the device, in whole pages of 2 MiB."""
    return sum(round_up(segment.total_size, PAGE) for segment in segments)
