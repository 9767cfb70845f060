"""A recording: what one file holds of every device, whatever layout it was written in.

Rule: nothing here reads or writes files, and nothing here judges what it holds; `lint` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim.display import Shown
from allocsim.errors import RecordingError
from allocsim.trace.annotation import Annotation
from allocsim.trace.frames import FrameTable
from allocsim.trace.provenance import Provenance
from allocsim.trace.releases import releases_of
from allocsim.trace.segments import WrongSum
from allocsim.trace.settings import RecordedSettings
from allocsim.trace.trace import Trace
from allocsim.units import format_size

__all__ = ["MEMORY_TIMELINE", "PROFILER_TRACE", "ROWS", "Recording"]

PROFILER_TRACE, MEMORY_TIMELINE, ROWS = "profiler trace", "memory timeline", "rows"
"""Layouts that hold requests alone."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Recording(Shown):
    """One loaded file.

    layout: "segment list" (a bare list, as memory_snapshot() gives), "snapshot 2.0", "snapshot", or
    one that holds requests alone (`is_requests`).
    devices: a trace for each device that has entries or segments, by device number.
    settings: None where unrecorded.
    markers: what tells releases apart (`releases`).
    n_device_traces: length of the file's device_traces, empty ones included.
    provenance: how it was made, where `allocsim record` noted it.
    wrong_sums: what the file says of its segments and their blocks do not come to.
    notes: what the file lacks, and what was made of it, in sentences.
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

    @property
    def is_requests(self) -> bool:
        """Whether it holds requests and frees alone: addresses that name blocks and say nothing of
        where they lay, no segments, no state."""
        return self.layout in (PROFILER_TRACE, MEMORY_TIMELINE, ROWS)

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases that can have written it, oldest first; empty if none writes such fields."""
        return releases_of(self.markers)

    def device(self, number: int) -> Trace:
        """The trace of device `number`; RecordingError names the devices there are."""
        for trace in self.devices:
            if trace.device == number:
                return trace
        known = ", ".join(str(trace.device) for trace in self.devices) or "none"
        raise RecordingError(self.path, f"device {number} is not in the recording; it has: {known}")

    def only_device(self, number: int | None = None) -> Trace:
        """The trace of device `number`; None: of the only one.

        Raises RecordingError if there are several and none is named, or there is none.
        """
        if number is not None:
            return self.device(number)
        if len(self.devices) > 1:
            numbers = ", ".join(str(trace.device) for trace in self.devices)
            raise RecordingError(self.path, f"has devices {numbers}; choose one (--device)")
        if not self.devices:
            raise RecordingError(self.path, "holds neither segments nor entries")
        return self.devices[0]

    def headline(self) -> str:
        """The file, and what it holds of each device."""
        name = self.path.rsplit("/", 1)[-1]
        return f"{name}: {'; '.join(map(_device, self.devices)) or 'no device'}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Devices, releases, settings."""
        for trace in self.devices:
            yield f"device {trace.device}", _device(trace).partition(": ")[2]
        if not self.is_requests:
            releases = ", ".join(self.releases) or "no release writes such fields"
            yield "written by PyTorch", releases
        settings = "not recorded" if self.settings is None else self.settings.conf
        yield "settings", settings or "defaults"


def _device(trace: Trace) -> str:
    entries = f"{len(trace):,} entries, " if len(trace) else ""
    held = format_size(sum(segment.total_size for segment in trace.segments))
    return f"device {trace.device}: {entries}{len(trace.segments):,} segments, {held}"
