"""Contents of a recording file, and detection of the PyTorch release and build that wrote it.

The PyTorch release is detected from markers, which are fields and actions that earlier releases do
not write.  The build (CUDA, XPU, ROCm, Ascend NPU) is detected from names in stacks or from sizes.
"""

# Sources: semantics 6.3, 6.5 and 9; recordings show that 2.11.0 writes no pool_id. The differences
# of the builds are from their source code of 2025 and 2026; no XPU or ROCm recording was available
# to check them, and the message for the user says so.

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from allocsim._fast_numpy import distinct
from allocsim._repr import Shown
from allocsim.errors import RecordingError
from allocsim.recording.frames import FrameTable
from allocsim.recording.provenance import Annotation, Provenance
from allocsim.recording.segments import RecordedSettings, WrongSum
from allocsim.recording.trace import Trace
from allocsim.units import format_size


@dataclass(frozen=True, slots=True)
class Marker:
    """Field of a snapshot, or action of an entry, that old PyTorch releases do not write.

    name: name of the field, or "action " and the name of the action.
    where: part of the file that has the marker: "segments", "entries", "snapshot" or "settings".
    always: True if newer releases write the marker in every file with a part `where`; then a file
        without the marker is from an older release.
    """

    name: str
    where: str
    always: bool = True


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Fields and actions that one PyTorch release introduced."""

    release: str
    markers: tuple[Marker, ...] = ()
    is_unrounded: bool = False
    """True if sizes and addresses need not be multiples of 512 under roundup_power2_divisions:1."""


LAYOUTS = (
    FileLayout("2.0", is_unrounded=True),
    FileLayout(
        "2.1",
        (
            Marker("segment_pool_id", "segments"),
            Marker("action segment_map", "entries", always=False),
            Marker("action segment_unmap", "entries", always=False),
        ),
        is_unrounded=True,
    ),
    FileLayout("2.2", (Marker("time_us", "entries"),), is_unrounded=True),
    FileLayout("2.3", (Marker("allocator_settings", "snapshot"),), is_unrounded=True),
    FileLayout("2.4"),
    FileLayout("2.5", (Marker("external_annotations", "snapshot"),)),
    FileLayout("2.6"),
    FileLayout("2.7"),
    FileLayout("2.8", (Marker("compile_context", "entries"),)),
    FileLayout("2.9", (Marker("graph_capture_record_stream_reuse", "settings"),)),
    FileLayout("2.10", (Marker("user_metadata", "entries"),)),
    FileLayout("2.11"),
    FileLayout("2.12", (Marker("pool_id", "entries"),)),
    FileLayout("2.13", (Marker("max_round_threshold", "settings"),)),
    FileLayout(
        "2.14",
        (Marker("host_segments", "snapshot"), Marker("action annotate", "entries", always=False)),
    ),
    FileLayout("2.15", (Marker("internal_metadata", "entries", always=False),)),
)
"""Fields and actions that each PyTorch release introduced, oldest release first."""

RELEASES = tuple(layout.release for layout in LAYOUTS)
"""PyTorch releases that a recording can come from, oldest first."""


def markers_in(where: str) -> tuple[str, ...]:
    return tuple(
        marker.name for layout in LAYOUTS for marker in layout.markers if marker.where == where
    )


def layout_releases(present: Set[str]) -> tuple[str, ...]:
    """Return the PyTorch releases that can have written a file, oldest first; () if none can.

    present: names of the markers in the file, and names of its non-empty parts ("segments",
        "entries", "snapshot", "settings").
    """
    lowest, highest = 0, len(LAYOUTS) - 1
    for since, layout in enumerate(LAYOUTS):
        for marker in layout.markers:
            if marker.name in present:
                lowest = max(lowest, since)
            elif marker.always and marker.where in present:
                highest = min(highest, since - 1)
    return RELEASES[lowest : highest + 1]


def unrounded_until(releases: tuple[str, ...]) -> str | None:
    unrounded = [layout.release for layout in LAYOUTS if layout.is_unrounded]
    return unrounded[-1] if set(unrounded) & set(releases) else None


PROFILER_TRACE, MEMORY_TIMELINE, ROWS = "profiler trace", "memory timeline", "rows"
"""Values of `Recording.layout` for files that have requests and frees, but no segments."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Recording(Shown):
    """Contents of one file.

    path: file name.
    layout: "segment list" (result of memory_snapshot()), "snapshot 2.0" (without pool ids),
        "snapshot" (of PyTorch 2.1 and later), or a layout with only requests (`is_requests`).
    devices: traces of the devices that have entries or segments, in order of device index.
    settings: allocator settings; None if not recorded.
    frame_table: stack frames and stacks of all devices.
    annotations: named ranges of the program, e.g. begin and end of each optimizer step.
    markers: fields and actions in the file that old PyTorch releases do not write, and names of the
        file's non-empty parts (`Marker`).
    n_device_traces: number of devices in the file, including devices without entries.
    provenance: data written by `allocsim record` or a capture; None for other files.
    wrong_sums: sizes stored for segments that differ from the sums over their blocks.
    notes: sentences about missing data and how it was replaced.
    processes: ids of the processes in a profiler trace; () for other files.
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
        """True if the file has only requests and frees; its addresses are then only block ids."""
        return self.layout in (PROFILER_TRACE, MEMORY_TIMELINE, ROWS)

    @property
    def releases(self) -> tuple[str, ...]:
        """PyTorch releases that can have written the file, oldest first; empty if none matches."""
        return layout_releases(self.markers)

    def device(self, number: int) -> Trace:
        """Return the trace of the device with index `number`.

        Raises RecordingError if the device was not recorded.
        """
        at = bisect_left(self.devices, number, key=attrgetter("device"))
        if at < len(self.devices) and self.devices[at].device == number:
            return self.devices[at]
        known = ", ".join(str(trace.device) for trace in self.devices) or "none"
        raise RecordingError(self.path, f"device {number} is not in the recording; it has: {known}")

    def only_device(self, number: int | None = None) -> Trace:
        """Return the trace of the device with index `number`; None selects the only device.

        Raises RecordingError if the device was not recorded, or if `number` is None and the
        recording does not have exactly one device.
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
        """Return the trace with the most entries; raise RecordingError if there is no device."""
        return max(self.devices, key=len) if self.devices else self.only_device()

    def headline(self) -> str:
        name = self.path.rsplit("/", 1)[-1]
        return f"{name}: {'; '.join(map(_device, self.devices)) or 'no device'}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
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


_STEP = 512
_SMALL = 1 << 20
_LEAST_BLOCKS = 8
_LEAST_SIZES = 3


@dataclass(frozen=True, slots=True)
class Backend:
    """Build of PyTorch for a device type other than CUDA.

    name: "NPU", "XPU" or "ROCm".
    words: parts of file and function names that occur only in stacks of this build.
    is_modelled: True if the build's allocator rounds and splits as CUDA's, so that a replay is
        valid.
    differs: differences from CUDA's allocator, as text that follows the words "its allocator".
    options: options of PYTORCH_CUDA_ALLOC_CONF that the build supports; None for all options.
    evidence: reason for the detection, as a clause.
    """

    name: str
    words: tuple[str, ...]
    is_modelled: bool
    differs: str
    options: frozenset[str] | None = None
    evidence: str = "its stacks name it"


_NPU = Backend(
    "NPU",
    ("torch_npu", "c10_npu::"),
    is_modelled=False,
    differs="adds 32 bytes to every request before it rounds, and has pages of 1 GiB and of its "
    "collectives besides PyTorch's",
)
_BACKENDS = (
    _NPU,
    Backend(
        "XPU",
        ("/torch/xpu/", "c10::xpu::", "XPUCachingAllocator"),
        is_modelled=True,
        differs="rounds and splits as CUDA's, but reads no option beside expandable_segments and "
        "the memory fraction, and on a full device gives back all that is cached at once",
        options=frozenset({"expandable_segments", "per_process_memory_fraction"}),
    ),
    Backend(
        "ROCm",
        ("c10::hip::", "HIPCachingAllocator"),
        is_modelled=True,
        differs="is CUDA's source, built for HIP",
    ),
)


def backend_of(recording: Recording) -> Backend | None:
    """Return the build of PyTorch that wrote the recording; None if it is the CUDA build."""
    backend = _named_in(recording.frame_table)
    if backend is None and _adds_to_requests(recording):
        evidence = "its blocks are 512 bytes larger than requests of whole 512 bytes"
        return replace(_NPU, evidence=evidence)
    return backend


def options_read(frames: FrameTable) -> frozenset[str] | None:
    """Return the options of PYTORCH_CUDA_ALLOC_CONF that a build of PyTorch supports.

    Return None for a build that supports all options.

    frames: recorded stacks, whose file and function names identify the build.
    """
    backend = _named_in(frames)
    return None if backend is None else backend.options


def _named_in(frames: FrameTable) -> Backend | None:
    texts = [(frame.filename.replace("\\", "/"), frame.name) for frame in frames.frames]
    for backend in _BACKENDS:
        if any(word in path or word in name for path, name in texts for word in backend.words):
            return backend
    return None


def _adds_to_requests(recording: Recording) -> bool:
    # torch_npu adds 512 bytes to requests. CUDA's allocator splits a small block whenever 512 bytes
    # remain, so no CUDA block is that much too large unless roundup_power2_divisions is set.
    settings = recording.settings
    if settings is not None and any(each > 1 for _, each in settings.roundup_power2_divisions):
        return False
    found = []
    for tiles in (trace.tiles for trace in recording.devices):
        if tiles is not None:
            asked = tiles.requested_size
            counts = tiles.is_small & tiles.is_active & (asked > 0) & (asked < _SMALL)
            counts &= asked % _STEP == 0
            found.append(np.stack((asked[counts], tiles.size[counts])))
    asked, size = np.concatenate(found or [np.empty((2, 0), dtype=np.int64)], axis=1)
    is_enough = len(asked) >= _LEAST_BLOCKS and len(distinct(asked)) >= _LEAST_SIZES
    return is_enough and bool((size - asked == _STEP).all())
