"""A recording through the model: under its own settings to prove it, under others to ask what if.

Rule: whatever the recording does not contain is inferred, and every inference is a sentence in
`notes`.  Fidelity is measured only when settings and device are the recorded ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.core import RELEASES as MODELLED
from allocsim.core import (
    CachingAllocator,
    Release,
    SeedBlock,
    SeedSegment,
    find_release,
    parse_conf,
)
from allocsim.engine.drive import Drive
from allocsim.engine.fidelity import FidelityCheck
from allocsim.engine.observers import Observer, PeakWatch, Progress
from allocsim.engine.plan import Plan, plan_of
from allocsim.engine.result import DeviceRun, PeakState, Run
from allocsim.errors import ConfigError, RecordingError
from allocsim.trace import Provenance, Recording, SegmentState, Trace, refuse_unsound, start_state
from allocsim.units import TIB, format_size, parse_size, round_up

__all__ = ["replay"]

UNLIMITED_DEVICE = 1 << 20 << 40
"""A device that nothing fills, for recordings that do not tell their device's size."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is replayed, and whether it is what was recorded."""

    conf: str
    release: Release
    device_memory: int | None
    provenance: Provenance | None
    addresses: str
    base_address: int | None
    is_as_recorded: bool


def replay(
    recording: Recording,
    conf: str | None = None,
    *,
    device_memory: int | str | None = None,
    torch_version: str | None = None,
    device: int | None = None,
    addresses: str = "recorded",
    base_address: int | None = None,
    check_every: int = 0,
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> Run:
    """Replay `recording`, all devices or one, and say what happened.

    conf, device_memory, torch_version: None for what was recorded, as far as it can be told.
    addresses: "recorded" dictates driver bases while the settings are the recorded ones;
    "bump" and "firstfit" hand them out from base_address, or from the recording's first.
    check_every: entries between walks of every invariant.  progress, observer: see `Progress`,
    `Observer`.
    Raises RecordingError if there is nothing to replay, ConfigError for settings the release
    refuses.
    """
    refuse_unsound(recording)
    release, release_note = release_of(recording, torch_version)
    recorded = recording.settings.conf if recording.settings is not None else ""
    refuse_recorded_conf(recording.path, recorded, release)
    notes = [release_note]
    if recording.settings is None:
        notes.append("the recording holds no settings; the default ones are assumed")
    wanted = recorded if conf is None else conf
    same_conf = conf is None or _means_the_same(conf, recorded, release)
    memory = None if device_memory is None else parse_size(device_memory)
    traces = recording.devices if device is None else (trace_of(recording, device),)
    runs = []
    known_memory = memory
    for trace in traces:
        settings = Settings(
            wanted,
            release,
            memory,
            recording.provenance,
            addresses,
            base_address,
            is_as_recorded=same_conf,
        )
        run = _replay_device(
            trace,
            recording,
            settings,
            check_every=check_every,
            progress=progress,
            observer=observer,
        )
        runs.append(run)
        known_memory = known_memory or run.device_memory
    notes += _inert(wanted, release)
    return Run(
        path=recording.path,
        conf=wanted,
        torch_version=release.version,
        device_memory=known_memory,
        devices=tuple(runs),
        notes=tuple(notes),
    )


def trace_of(recording: Recording, device: int) -> Trace:
    try:
        return recording.device(device)
    except KeyError as error:
        raise RecordingError(recording.path, str(error.args[0])) from None


def release_of(recording: Recording, torch_version: str | None) -> tuple[Release, str]:
    """The release to model, and why it is that one."""
    if torch_version is not None:
        release = find_release(torch_version)
        return release, f"PyTorch {release.version}: as asked"
    made_by = recording.provenance.release if recording.provenance is not None else ""
    if made_by in MODELLED:
        return MODELLED[made_by], f"PyTorch {made_by}: as recorded"
    possible = [version for version in recording.releases if version in MODELLED]
    if not possible:
        newest = list(MODELLED)[-1]
        return MODELLED[newest], f"PyTorch {newest}: the newest, since the layout tells none"
    newest = possible[-1]
    if len(possible) == 1:
        return MODELLED[newest], f"PyTorch {newest}: no other release writes this layout"
    return (
        MODELLED[newest],
        f"PyTorch {newest}: the newest of those that write this layout "
        f"({possible[0]} to {possible[-1]})",
    )


def refuse_recorded_conf(path: str, conf: str, release: Release) -> None:
    try:
        parse_conf(conf, release)
    except ConfigError as error:
        raise RecordingError(
            path, f"its settings {conf[:80]!r} are refused by release {release.version}: {error}"
        ) from None


def _means_the_same(conf: str, recorded: str, release: Release) -> bool:
    ours, theirs = parse_conf(conf, release), parse_conf(recorded, release)
    return str(ours) == str(theirs)


def _inert(conf: str, release: Release) -> tuple[str, ...]:
    config = parse_conf(conf, release)
    return config.inert_options(has_limit=config.per_process_memory_fraction < 1.0)


def _replay_device(
    trace: Trace,
    recording: Recording,
    settings: Settings,
    *,
    check_every: int,
    progress: Progress | None,
    observer: Observer | None,
) -> DeviceRun:
    """One device's replay."""
    peak = PeakWatch()
    drive, memory, notes = drive_of(
        trace,
        recording,
        settings,
        check_every=check_every,
        progress=progress,
        observers=(peak,) if observer is None else (peak, observer),
    )
    drive.run()
    return _result(trace, drive, peak.state, memory, notes)


def drive_of(
    trace: Trace,
    recording: Recording,
    settings: Settings,
    *,
    check_every: int = 0,
    progress: Progress | None = None,
    observers: tuple[Observer, ...] = (),
) -> tuple[Drive, int | None, list[str]]:
    """A replay that has not begun, its device's memory, and what had to be inferred."""
    start = start_of(trace, recording, settings.release)
    refuse_too_small(trace, start, settings.device_memory)
    held = sum(segment.total_size for segment in start)
    plan = plan_of(trace, held, collects_above(recording, settings.release))
    as_recorded = settings.is_as_recorded and _is_same_device(plan, settings)
    memory, notes = _device_memory(plan, settings, as_recorded)
    dictates = as_recorded and settings.addresses == "recorded"
    allocator = CachingAllocator(
        memory or UNLIMITED_DEVICE,
        settings.conf,
        settings.release.version,
        context_memory=_context_memory(settings),
        address_policy="bump" if settings.addresses == "recorded" else settings.addresses,
        base_address=_base(trace, settings, dictates),
        record_history=as_recorded or any(observer.keeps_history for observer in observers),
        device=trace.device,
    )
    allocator.seed(seeds_of(start))
    if start:
        notes.append(
            f"the recording starts mid-run: {len(start)} segments, {format_size(held)}, were there"
        )
        if any(segment.is_expandable for segment in start):
            notes.append(
                "the bases of expandable segments are not recorded; the lowest mapped address of "
                "each is taken for it"
            )
    drive = Drive(
        allocator,
        plan,
        len(trace),
        dictates=dictates,
        check_every=check_every,
        fidelity=FidelityCheck(trace) if as_recorded else None,
        progress=progress,
        observers=observers,
    )
    return drive, memory, notes


def refuse_too_small(
    trace: Trace, start: tuple[SegmentState, ...], device_memory: int | None
) -> None:
    """What a recording begins with is there, however small the device."""
    held = sum(segment.total_size for segment in start)
    if device_memory is not None and held > device_memory:
        raise ConfigError(
            f"device memory {format_size(device_memory)} cannot hold what device {trace.device} "
            f"had reserved before the first entry; expected {format_size(held)} or more"
        )


def _context_memory(settings: Settings) -> int:
    """What the CUDA context held, where the recording says so: it holds as much elsewhere."""
    return settings.provenance.context_memory if settings.provenance is not None else 0


def _is_same_device(plan: Plan, settings: Settings) -> bool:
    """Whether the recording can have been made on a device of this size."""
    device_memory = settings.device_memory
    if settings.provenance is not None and settings.provenance.device_memory:
        return device_memory in (None, settings.provenance.device_memory)
    if device_memory is None or device_memory == plan.capacity:
        return True
    had_room = plan.capacity is None and plan.refused_below is None
    return had_room and device_memory >= plan.max_reserved


def collects_above(recording: Recording, release: Release) -> int | None:
    """Reserved bytes above which the recorded program's requests collected garbage (1.9).

    None where they never did, as far as the recording tells: a limit that the program set by a
    call is in no recording.
    """
    made, recorded = recording.provenance, recording.settings
    if made is None or not made.device_memory or recorded is None:
        return None
    heap = CachingAllocator(made.device_memory, recorded.conf, release.version).heap
    if not heap.collects_garbage or heap.limit is None:
        return None
    return int(heap.config.garbage_collection_threshold * heap.limit)


def start_of(trace: Trace, recording: Recording, release: Release) -> tuple[SegmentState, ...]:
    recorded = recording.settings
    config = parse_conf(recorded.conf if recorded is not None else "", release)
    try:
        return start_state(
            trace,
            rounded=config.round_size,
            max_split_size=recorded.max_split_size if recorded is not None else None,
        )
    except RecordingError as error:
        what = str(error).partition(": ")[2].removeprefix(f"entry {error.entry}: ")
        raise RecordingError(recording.path, what, entry=error.entry) from None


def _device_memory(
    plan: Plan, settings: Settings, as_recorded: bool
) -> tuple[int | None, list[str]]:
    """Bytes of the device, None for one without end, and what was inferred about it."""
    notes = []
    if plan.n_empty_cache:
        notes.append(
            f"{plan.n_empty_cache} releases of cached memory are taken for empty_cache calls"
        )
    if settings.device_memory is not None:
        return settings.device_memory, notes
    if settings.provenance is not None and settings.provenance.device_memory:
        notes.append(_device_note(settings.provenance))
        return settings.provenance.device_memory, notes
    if plan.capacity is not None:
        notes.append(
            f"device memory {format_size(plan.capacity)}: free plus reserved at the recorded "
            "out-of-memory error"
        )
        return plan.capacity, notes
    inferred = plan.inferred_capacity
    if inferred is not None and as_recorded:
        notes.append(
            f"device memory is not recorded; segments released before a new one suggest "
            f"{format_size(plan.max_reserved)} to {format_size(inferred)}"
        )
        return inferred, notes
    notes.append(
        f"device memory is not recorded: replayed without a limit (at least "
        f"{format_size(plan.max_reserved)} were reserved)"
    )
    return None, notes


def _device_note(made: Provenance) -> str:
    what = f"device memory {format_size(made.device_memory)}"
    if made.context_memory:
        what += f", of which the CUDA context holds {format_size(made.context_memory)}"
    return f"{what}: as recorded on {made.device_name or 'a device without a name'}"


def _base(trace: Trace, settings: Settings, dictates: bool) -> int:
    """Where the driver's addresses begin: past the recorded ones if those are dictated."""
    if settings.base_address is not None:
        return settings.base_address
    moved = [
        (entry.addr, entry.addr + entry.size) for entry in map(trace.__getitem__, _driver(trace))
    ]
    moved += [(segment.address, segment.end) for segment in trace.segments]
    if not moved:
        return 0
    if dictates:
        return round_up(max(end for _, end in moved), TIB)
    return moved[0][0]


def _driver(trace: Trace) -> list[int]:
    """The entries of memory that came from the driver."""
    names = ("segment_alloc", "segment_map")
    return [int(i) for i in trace.observations() if trace[int(i)].action.text in names]


def seeds_of(segments: tuple[SegmentState, ...]) -> list[SeedSegment]:
    return [
        SeedSegment(
            address=segment.address,
            total_size=segment.total_size,
            stream=segment.stream,
            is_small=segment.is_small,
            pool_id=segment.pool_id,
            is_expandable=segment.is_expandable,
            blocks=tuple(
                SeedBlock(block.size, block.requested_size, block.state) for block in segment.blocks
            ),
        )
        for segment in segments
    ]


def _result(
    trace: Trace, drive: Drive, peak: PeakState, memory: int | None, notes: list[str]
) -> DeviceRun:
    allocator = drive.allocator
    fidelity = None
    if drive.fidelity is not None:
        fidelity = drive.fidelity.result(allocator.segments())
    if drive.stopped_at is not None:
        notes.append(
            f"the replay stops at entry {drive.stopped_at}: the program would have ended with "
            "this out-of-memory error"
        )
    return DeviceRun(
        device=trace.device,
        entries=len(trace),
        device_memory=memory,
        stats=allocator.memory_stats(),
        timeline=drive.timeline.build(drive.plan.steps.entry),
        peak=peak,
        ooms=tuple(drive.ooms),
        fidelity=fidelity,
        notes=tuple(notes),
        stopped_at=drive.stopped_at,
    )
