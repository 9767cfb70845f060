"""A recording: the contents of one file for all devices, independent of its layout.

This module does not read or write files and does not check the contents; `lint` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim._repr import Shown
from allocsim.errors import RecordingError
from allocsim.recording.annotation import Annotation
from allocsim.recording.frames import FrameTable
from allocsim.recording.provenance import Provenance
from allocsim.recording.releases import releases_of
from allocsim.recording.segments import WrongSum
from allocsim.recording.settings import RecordedSettings
from allocsim.recording.trace import Trace
from allocsim.units import format_size

__all__ = ["MEMORY_TIMELINE", "PROFILER_TRACE", "ROWS", "Recording"]

PROFILER_TRACE, MEMORY_TIMELINE, ROWS = "profiler trace", "memory timeline", "rows"
"""Layouts that contain only requests."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Recording(Shown):
    """One loaded file.

    layout: "segment list" (a list, as memory_snapshot() returns it), "snapshot 2.0", "snapshot", or
        a layout that contains only requests (`is_requests`).
    devices: traces of the devices that have entries or segments, by device number.
    settings: allocator settings; None if not recorded.
    markers: fields and actions by which releases differ (`releases`).
    n_device_traces: length of the file's device_traces, including empty ones.
    provenance: data written by `allocsim record` or a capture; None for other files.
    wrong_sums: sums of segments that differ from the sums of their blocks.
    notes: sentences about missing data and how it was replaced.
    processes: ids of the processes whose events the file contains, if it has them.
    """

    path: str
    layout: str
    devices: tuple[Trace, ...]
    settings: RecordedSettings | None = None
    frame_table: FrameTable = FrameTable()  # noqa: RUF009  (frozen, and empty)
    annotations: tuple[Annotation, ...] = ()
    markers: frozenset[str] = frozenset()
    n_device_traces: int = 0
    provenance: Provenance | None = None
    wrong_sums: tuple[WrongSum, ...] = ()
    notes: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()

    @property
    def is_requests(self) -> bool:
        """True if it contains only requests and frees: no segments, and addresses are mere ids."""
        return self.layout in (PROFILER_TRACE, MEMORY_TIMELINE, ROWS)

    @property
    def releases(self) -> tuple[str, ...]:
        """Releases that can have written it, oldest first; empty if no release matches."""
        return releases_of(self.markers)

    def device(self, number: int) -> Trace:
        """Return the trace of device `number`; RecordingError lists the recorded devices."""
        for trace in self.devices:
            if trace.device == number:
                return trace
        known = ", ".join(str(trace.device) for trace in self.devices) or "none"
        raise RecordingError(self.path, f"device {number} is not in the recording; it has: {known}")

    def only_device(self, number: int | None = None) -> Trace:
        """Return the trace of device `number`, or of the only device if it is None.

        Raises RecordingError if there is no such device, or if several exist and `number` is None.
        """
        if number is not None:
            return self.device(number)
        if len(self.devices) > 1:
            numbers = ", ".join(str(trace.device) for trace in self.devices)
            raise RecordingError(self.path, f"has devices {numbers}; choose one (--device)")
        if not self.devices:
            raise RecordingError(self.path, "holds neither segments nor entries")
        return self.devices[0]

    def busiest_device(self) -> Trace:
        """Return the trace with most entries.

        Raises RecordingError if there is none.
        """
        return max(self.devices, key=len) if self.devices else self.only_device()

    def headline(self) -> str:
        """Return the file name with a summary of each device."""
        name = self.path.rsplit("/", 1)[-1]
        return f"{name}: {'; '.join(map(_device, self.devices)) or 'no device'}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Yield label and text of devices, releases and settings."""
        for trace in self.devices:
            yield f"device {trace.device}", _device(trace).partition(": ")[2]
        if not self.is_requests:
            releases = ", ".join(self.releases) or "no release writes such fields"
            yield "written by PyTorch", releases
        settings = "not recorded" if self.settings is None else self.settings.conf
        yield "settings", settings or "defaults"


def _device(trace: Trace) -> str:
    entries = f"{len(trace):,} {'entry' if len(trace) == 1 else 'entries'}, " if len(trace) else ""
    held = format_size(sum(segment.total_size for segment in trace.segments))
    return f"device {trace.device}: {entries}{len(trace.segments):,} segments, {held}"
