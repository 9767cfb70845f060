"""A recording: the contents of one file for all devices, in the same form for all file formats.

This module neither reads or writes files nor checks the contents, which `find_defects` does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from allocsim._repr import Shown
from allocsim.errors import RecordingError
from allocsim.recording.frames import FrameTable
from allocsim.recording.marks import Annotation
from allocsim.recording.provenance import Provenance
from allocsim.recording.releases import layout_releases
from allocsim.recording.segments import RecordedSettings, WrongSum
from allocsim.recording.trace import Trace
from allocsim.units import format_size

PROFILER_TRACE, MEMORY_TIMELINE, ROWS = "profiler trace", "memory timeline", "rows"
"""Layouts that contain only requests."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Recording(Shown):
    """Contents of one file.

    path: file name.
    layout: "segment list" (a list, as memory_snapshot() returns it), "snapshot 2.0", "snapshot", or
        a layout that contains only requests (`is_requests`).
    devices: traces of the devices that have entries or segments, in order of device number.
    settings: allocator settings; None if not recorded.
    frame_table: stack frames and stacks of all devices.
    annotations: external annotations, e.g. begin and end of each optimizer step.
    markers: fields and actions in the file that not all releases of PyTorch write.
    n_device_traces: length of the file's device_traces, including empty ones.
    provenance: data written by `allocsim record` or a capture; None for other files.
    wrong_sums: sums of segments that differ from the sums of their blocks.
    notes: sentences about missing data and how it was replaced.
    processes: ids of the processes whose events a profiler trace contains; else empty.
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
        """True if there are only requests and frees; addresses then only distinguish blocks."""
        return self.layout in (PROFILER_TRACE, MEMORY_TIMELINE, ROWS)

    @property
    def releases(self) -> tuple[str, ...]:
        """PyTorch releases that can have written it, oldest first; empty if no release matches."""
        return layout_releases(self.markers)

    def device(self, number: int) -> Trace:
        """Return the trace of device `number`; raise RecordingError if it was not recorded."""
        at = bisect_left(self.devices, number, key=attrgetter("device"))
        if at < len(self.devices) and self.devices[at].device == number:
            return self.devices[at]
        known = ", ".join(str(trace.device) for trace in self.devices) or "none"
        raise RecordingError(self.path, f"device {number} is not in the recording; it has: {known}")

    def only_device(self, number: int | None = None) -> Trace:
        """Return the trace of device `number`, or of the only device if `number` is None.

        Raises RecordingError if that device was not recorded, or if `number` is None and not
        exactly one device was recorded.
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
        """Return the trace with the largest number of entries.

        Raises RecordingError if the recording has no device.
        """
        return max(self.devices, key=len) if self.devices else self.only_device()

    def headline(self) -> str:
        """Return one line: the file name, and the entries, segments and bytes of each device."""
        name = self.path.rsplit("/", 1)[-1]
        return f"{name}: {'; '.join(map(_device, self.devices)) or 'no device'}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of label and text about the devices, the PyTorch release and the settings."""
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
