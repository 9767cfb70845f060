"""A recording through the model: under its own settings to prove it, under others to ask what if.

Rule: whatever the recording does not contain is inferred, and every inference is a sentence in
`notes`.  Fidelity is measured only when settings and device are the recorded ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from allocsim.collector import collector_paused
from allocsim.core import AllocatorConfig
from allocsim.engine.drive import Drive
from allocsim.engine.fidelity import FidelityCheck, Uncompared
from allocsim.engine.hints import Hints
from allocsim.engine.left_open import (
    Probe,
    Quiet,
    asks_moments,
    leaves_open,
    moments_of,
    peaks_left_open,
)
from allocsim.engine.notes import (
    cause_notes,
    device_note,
    known_notes,
    open_notes,
    peak_notes,
    start_notes,
    workspace_note,
)
from allocsim.engine.observers import Observer, PeakWatch, Progress, SpillWatch
from allocsim.engine.prepare import prepare
from allocsim.engine.prepared import UNLIMITED_DEVICE, Prepared
from allocsim.engine.result import DeviceRun, Parting, Run
from allocsim.engine.setting import Setting
from allocsim.engine.start import Start
from allocsim.engine.two_starts import peaks_of
from allocsim.errors import AllocsimError, ConfigError
from allocsim.trace import Recording
from allocsim.units import TIB, format_size, parse_size, round_up

__all__ = [
    "OTHER_RELEASE",
    "bytes_of",
    "device_of",
    "difference_step_by_step",
    "drive_as_recorded",
    "is_recorded_device",
    "parting_of",
    "replay",
    "replay_prepared",
]


OTHER_RELEASE = (
    "another release wrote the recording: this is what the one asked for would have done"
)
"""The note on a release that cannot have written what it replays."""


def replay(
    recording: Recording,
    conf: str | None = None,
    *,
    device_memory: int | str | None = None,
    torch_version: str | None = None,
    device: int | None = None,
    hints: Hints | None = None,
    addresses: str = "recorded",
    base_address: int | None = None,
    host_spill: int | str = 0,
    check_every: int = 0,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """Replay `recording`, all devices or one, and say what happened.

    conf, device_memory, torch_version: None for what was recorded, as far as it can be told.
    hints: what is known of the program besides.
    addresses: "recorded" dictates driver bases while the settings are the recorded ones;
    "bump" and "firstfit" hand them out from base_address, or from the recording's first.
    host_spill: what the driver lends of the host's memory once the device is full, as those of
    Windows do; with it the run is compared with nothing.
    check_every: entries between walks of every invariant.  progress, observers: see `Progress`,
    `Observer`.
    Raises RecordingError if there is nothing to replay, ConfigError for settings the release
    refuses.
    """
    return replay_prepared(
        prepare(recording, device, torch_version, hints=hints),
        None if conf is None else Setting(conf),
        device_memory=bytes_of(device_memory),
        addresses=addresses,
        base_address=base_address,
        host_spill=bytes_of(host_spill) or 0,
        check_every=check_every,
        progress=progress,
        observers=observers,
    )


def bytes_of(size: int | str | None) -> int | None:
    """A device's memory, as a caller names it.  Raises ConfigError for text that is no size."""
    try:
        return None if size is None else parse_size(size)
    except ValueError as error:
        raise ConfigError(str(error)) from None


@collector_paused()
def replay_prepared(
    devices: Sequence[Prepared],
    setting: Setting | None = None,
    *,
    device_memory: int | None = None,
    addresses: str = "recorded",
    base_address: int | None = None,
    host_spill: int = 0,
    check_every: int = 0,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """`replay` of devices of one recording that are ready."""
    devices = [prepared.on(device_memory) for prepared in devices]
    first = devices[0]
    wanted = setting or first.recorded
    config = wanted.config(first.release)
    notes = [first.release_note, *first.file_notes]
    if not first.is_own_release:
        notes.append(OTHER_RELEASE)
    made = first.provenance.release if first.provenance is not None else ""
    if (differs := workspace_note(made, first.release)) is not None:
        notes.append(differs)
    if not first.has_settings:
        notes.append("the recording holds no settings; the default ones are assumed")
    runs = []
    for prepared in devices:
        peak, spill = PeakWatch(), SpillWatch()
        drive, memory, device_notes = drive_as_recorded(
            prepared,
            wanted,
            device_memory,
            addresses=addresses,
            base_address=base_address,
            host_spill=host_spill,
            check_every=check_every,
            progress=progress,
            observers=(peak, *[spill] * bool(host_spill), *observers),
        )
        drive.run()
        run = _result(prepared, drive, peak, memory, device_notes)
        if host_spill:
            # Other ways to begin, or to go on, would be those of a device that refuses.
            runs.append(
                replace(run, spill=spill.result(host_spill, drive.allocator.device.spilled))
            )
        else:
            runs.append(_with_peaks(prepared, wanted, drive, run))
    known = [device_memory, *(run.device_memory for run in runs)]
    return Run(
        path=first.path,
        conf=wanted.conf,
        torch_version=first.release.version,
        device_memory=next((memory for memory in known if memory is not None), None),
        devices=tuple(runs),
        notes=(*notes, *_inert(first.in_force(wanted), config)),
        releases=first.releases,
    )


def parting_of(prepared: Prepared) -> Parting | None:
    """Where the replay as recorded leaves the recording; it is made once to find out.

    None: nowhere, or there is none, since another release is asked for.
    """
    if not prepared.is_own_release:
        return None
    if not prepared.proofs:
        prepared.proofs.append(_proved(prepared))
    return prepared.proofs[0]


def _proved(prepared: Prepared) -> Parting | None:
    """`parting_of`, by a drive that looks at the moments of `quiet` on its way.

    A proof that holds is the recorded run, which is what is asked about; a drive for the moments
    alone would be a third of a what-if's time.
    """
    quiet: list[int] = []
    moments = moments_of(prepared) if asks_moments(prepared) else []
    steps = np.flatnonzero(prepared.plan.steps.is_undictated)
    probe = partial(Probe, moments=steps[moments].tolist(), quiet=quiet)
    drive, _, _ = drive_as_recorded(prepared, prepared.recorded, None, make=probe)
    assert drive.fidelity is not None
    with suppress(AllocsimError):  # what PyTorch would not survive did not happen
        drive.run()
    fidelity = drive.fidelity.result(drive.allocator.segments())
    parting = fidelity.parting_of(prepared.trace.device)
    if parting is None and moments:
        after = tuple(moments[number] for number in quiet)
        prepared.looked.append(Quiet(after, len(moments)))
    return parting


def difference_step_by_step(prepared: Prepared, device_run: DeviceRun) -> str | None:
    """What a replay as recorded comes to otherwise if every step is taken singly; None: nothing.

    It keeps no history either: both are shorter ways through the model that must change nothing.
    device_run: the replay as recorded that took rows of steps and kept a history.
    """
    memory = device_run.device_memory
    asked = memory if is_recorded_device(prepared, memory) else None
    drive, _, _ = drive_as_recorded(prepared, prepared.recorded, asked, is_stepwise=True)
    drive.run()
    stats = drive.allocator.memory_stats()
    for key, value in device_run.stats.items():
        if stats[key] != value:
            return f"{key} is {stats[key]:,} step by step and {value:,} otherwise"
    check = FidelityCheck(prepared.trace)
    segments = check.result(drive.allocator.segments()).segments_matched
    if device_run.fidelity is not None and segments != device_run.fidelity.segments_matched:
        return f"{segments} segments are as recorded step by step"
    return None


def _inert(setting: Setting, config: AllocatorConfig) -> tuple[str, ...]:
    has_limit = config.per_process_memory_fraction < 1.0 or setting.call_fraction is not None
    return config.inert_options(has_limit=has_limit)


def drive_as_recorded(
    prepared: Prepared,
    setting: Setting,
    device_memory: int | None,
    *,
    addresses: str = "recorded",
    base_address: int | None = None,
    host_spill: int = 0,
    check_every: int = 0,
    progress: Progress | None = None,
    observers: tuple[Observer, ...] = (),
    is_stepwise: bool = False,
    make: Callable[..., Drive] = Drive,
) -> tuple[Drive, int | None, list[str]]:
    """A replay that has not begun, its device's memory, and what had to be inferred.

    Where setting and device are the recorded ones, driver bases are dictated and the recording is
    compared with what happens.  is_stepwise: every step by itself and without a history, so that
    nothing is compared.  make: the sort of drive.
    """
    plan = prepared.plan_under(setting, prepared.plan)
    is_same = prepared.is_recorded(setting)
    is_as_recorded = is_same and is_recorded_device(prepared, device_memory) and not host_spill
    memory, notes = _device_memory(prepared, device_memory, is_as_recorded=is_as_recorded)
    is_compared = is_as_recorded and not is_stepwise
    dictates = is_as_recorded and addresses == "recorded"
    if host_spill and memory is None:
        raise ConfigError(
            "the host lends memory beside a device's own, whose size is not recorded; name it"
        )
    start = Start.KEPT if host_spill else prepared.start_under(setting, memory)
    if base_address is None:
        base_address = prepared.first_base
        if dictates:
            base_address = round_up(prepared.last_address, TIB)
    keeps_history = any(each.keeps_history for each in observers)
    check_of = Uncompared if prepared.is_requests else FidelityCheck
    expected = prepared.expected if is_compared and plan is prepared.plan else None
    allocator = prepared.allocator(
        setting,
        memory,
        address_policy="bump" if addresses == "recorded" else addresses,
        base_address=base_address,
        record_history=is_compared or keeps_history,
        fast_path=not is_stepwise,
        limit=prepared.limit_for(setting, memory, plan),
        start=start,
        host_spill=host_spill,
    )
    drive = make(
        allocator,
        plan,
        len(prepared.trace),
        dictates=dictates,
        check_every=check_every,
        fidelity=check_of(prepared.trace, expected) if is_compared else None,
        progress=progress,
        observers=observers,
        lays_out=prepared.start if start is Start.ANEW else (),
        keeps_rows=is_compared and not keeps_history,
    )
    return drive, memory, [*notes, *known_notes(prepared), *start_notes(prepared, start)]


def is_recorded_device(prepared: Prepared, device_memory: int | None) -> bool:
    """Whether the recording can have been made on a device of this size."""
    plan = prepared.plan
    if prepared.named_memory is not None:
        return device_memory in (None, prepared.named_memory)
    if device_memory is None or device_memory == plan.capacity:
        return True
    had_room = plan.capacity is None and plan.refused_below is None
    return had_room and device_memory >= plan.max_reserved


def device_of(prepared: Prepared) -> tuple[int | None, list[str]]:
    """Bytes of the device that a replay as recorded takes, None for one without end; and why."""
    return _device_memory(prepared, None, is_as_recorded=True)


def _device_memory(
    prepared: Prepared, asked: int | None, *, is_as_recorded: bool
) -> tuple[int | None, list[str]]:
    """Bytes of the device, None for one without end, and what was inferred about it."""
    plan, made = prepared.plan, prepared.provenance
    notes = cause_notes(prepared)
    if asked is not None:
        return asked, notes
    if made is not None and prepared.named_memory is not None:
        return prepared.named_memory, [*notes, device_note(made)]
    if plan.capacity is not None:
        notes.append(
            f"device memory {format_size(plan.capacity)}: free plus reserved at the recorded "
            "out-of-memory error"
        )
        return plan.capacity, notes
    if plan.fits is not None and plan.fits < UNLIMITED_DEVICE and is_as_recorded:
        notes.append(
            f"device memory is not recorded; where its segments grew fits one of "
            f"{format_size(plan.fits)}"
        )
        return plan.fits, notes
    inferred = plan.inferred_capacity
    if inferred is not None and is_as_recorded:
        notes.append(
            f"device memory is not recorded; segments released before a new one suggest "
            f"{format_size(plan.max_reserved)} to {format_size(inferred)}"
        )
        return inferred, notes
    at_least = f" (at least {format_size(plan.max_reserved)} were reserved)"
    least = at_least if plan.max_reserved else ""
    notes.append(f"device memory is not recorded: replayed without a limit{least}")
    return None, notes


def _with_peaks(prepared: Prepared, setting: Setting, drive: Drive, run: DeviceRun) -> DeviceRun:
    """`run` with what else it may come to: begun otherwise, or by what is left open."""
    peak = None if run.stopped_at is not None else run.peak_reserved_bytes
    peaks = peaks_of(prepared, setting, run.device_memory, drive.start, peak)
    if peaks is not None:
        run = replace(run, peaks=peaks, notes=(*run.notes, *peak_notes(peaks)))
    found = peaks_left_open(prepared, setting, run.device_memory)
    if found is None or (found == (peak, peak) and not leaves_open(prepared)):
        return run
    run = replace(run, peaks_left_open=found)
    return replace(run, notes=(*run.notes, *open_notes(prepared, run)))


def _result(
    prepared: Prepared, drive: Drive, peak: PeakWatch, memory: int | None, notes: list[str]
) -> DeviceRun:
    allocator = drive.allocator
    fidelity = None
    if drive.fidelity is not None:
        fidelity = drive.fidelity.result(allocator.segments())
    if fidelity is not None and drive.dictates and prepared.is_own_release:
        parting = fidelity.parting_of(prepared.trace.device)
    else:
        parting = parting_of(prepared)
    if drive.stopped_at is not None:
        notes.append(
            f"the replay stops at entry {drive.stopped_at}: the program would have ended with "
            "this out-of-memory error"
        )
    return DeviceRun(
        device=prepared.trace.device,
        entries=len(prepared.trace),
        device_memory=memory,
        peak_device_bytes=peak.device_bytes,
        stats=allocator.memory_stats(),
        timeline=drive.timeline.build(drive.plan.steps.entry),
        peak=peak.state,
        ooms=tuple(drive.ooms),
        fidelity=fidelity,
        notes=tuple(notes),
        stopped_at=drive.stopped_at,
        parting=parting,
        refused_below=drive.refused_below,
    )
