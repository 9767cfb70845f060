"""Replay of a recording: under its own settings as a baseline, under others as a what-if.

A replay is compared with the recording only if settings and device are the recorded ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from allocsim.collector import collector_paused
from allocsim.core import AllocatorConfig, ReplayAllocator
from allocsim.errors import ConfigError, RecordingError
from allocsim.inference import Probe
from allocsim.recording import Action, Recording
from allocsim.replaying.baseline import parting_of, run_as_proof, unstarted_drive
from allocsim.replaying.notes import peak_notes, workspace_note
from allocsim.replaying.prepare import compare_blocks, prepare
from allocsim.replaying.prepared import Prepared
from allocsim.replaying.uncertainty import left_open, moments_of_calls, peaks_by_start
from allocsim.simulation import (
    PAUSE_EVERY,
    Deferred,
    DeviceRun,
    Drive,
    Hints,
    Observer,
    Parting,
    PeakWatch,
    Progress,
    Run,
    Setting,
    SimulatedOom,
    SpillWatch,
    Step,
    StepKind,
    driver_calls_of,
)
from allocsim.units import parse_size

OTHER_RELEASE = (
    "another release wrote the recording: the replay shows what the requested release would do"
)
"""Note for a requested PyTorch release that cannot have written the recording."""


@collector_paused()
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
    """Replay all devices of `recording`, or only `device`.

    conf: option string (PYTORCH_CUDA_ALLOC_CONF) to replay under; None for the recorded one.
    device_memory: bytes or a text such as "24GiB"; None for the recorded or inferred size.
    torch_version: PyTorch version to model; None to choose it from the recording.
    hints: facts about the program that the recording does not contain.
    addresses: placement of segments.  "recorded" uses the recorded addresses of the driver if
        settings and device are the recorded ones, else the policy that the recording shows.
        "bump" and "firstfit" place segments from `base_address` on.
    base_address: address of the first segment; None for the recording's first address.
    host_spill: host memory in bytes that the driver provides when the device is full, as drivers
        for Windows do.  The replay is then not compared with the recording.
    check_every: number of steps between checks of all invariants; 0 for no checks.
    progress: function called with the number of entries done and in total.
    observers: objects whose methods are called at events of the replay, such as a new peak.
    Raises RecordingError if there is nothing to replay, and ConfigError for settings that this
    version of PyTorch refuses.
    """
    try:
        # Observers see only recordings without contradictions.
        devices = prepare(
            recording, device, torch_version, hints=hints, compares_blocks=bool(observers)
        )
        run = replay_prepared(
            devices,
            None if conf is None else Setting(conf),
            device_memory=bytes_of(device_memory),
            addresses=addresses,
            base_address=base_address,
            host_spill=bytes_of(host_spill) or 0,
            check_every=check_every,
            progress=progress,
            observers=observers,
        )
    except Exception:
        compare_blocks(recording)  # overlapping blocks are the better explanation
        raise
    pairs = zip(devices, run.devices, strict=True)
    exact = {each.device for prepared, each in pairs if _is_exact(prepared, each)}
    compare_blocks(recording, exact if addresses == "recorded" else ())
    return run


def _is_exact(prepared: Prepared, run: DeviceRun) -> bool:
    is_proved = bool(prepared.proofs) and prepared.proofs[0] is None
    return is_proved or (run.fidelity is not None and run.fidelity.is_exact)


def bytes_of(size: int | str | None) -> int | None:
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
        notes.append("the recording contains no settings; the defaults are assumed")
    runs = [
        _run_of(
            prepared,
            wanted,
            device_memory,
            addresses=addresses,
            base_address=base_address,
            host_spill=host_spill,
            check_every=check_every,
            progress=progress,
            observers=observers,
        )
        for prepared in devices
    ]
    known = [device_memory, *(run.device_memory for run in runs)]
    return Run(
        path=first.path,
        conf=wanted.conf,
        torch_version=first.release.version,
        device_memory=next((memory for memory in known if memory is not None), None),
        devices=tuple(runs),
        notes=(*notes, *_inert(first.in_force(wanted), config)),
        releases=first.releases,
        card=first.card,
    )


def _inert(setting: Setting, config: AllocatorConfig) -> tuple[str, ...]:
    has_limit = config.per_process_memory_fraction < 1.0 or setting.call_fraction is not None
    return config.inert_options(has_limit=has_limit)


def _run_of(
    prepared: Prepared,
    setting: Setting,
    device_memory: int | None,
    *,
    addresses: str,
    base_address: int | None,
    host_spill: int,
    check_every: int,
    progress: Progress | None,
    observers: Sequence[Observer],
) -> DeviceRun:
    is_plain = addresses == "recorded" and base_address is None and not host_spill
    peak = PeakWatch()
    if is_plain and not observers:
        proved = run_as_proof(
            prepared,
            setting,
            device_memory,
            observer=peak,
            check_every=check_every,
            progress=progress,
        )
        if proved is not None:
            drive = proved[0]
            run = _result(prepared, peak, *proved, is_baseline=False)
            return _with_peaks(prepared, setting, drive, run, frozenset())
        peak = PeakWatch()
    spill = SpillWatch()
    moments = moments_of_calls(prepared, setting) if is_plain else None
    loud: list[int] = []
    drive, memory, notes = unstarted_drive(
        prepared,
        setting,
        device_memory,
        addresses=addresses,
        base_address=base_address,
        host_spill=host_spill,
        check_every=check_every,
        progress=progress,
        observers=(peak, *[spill] * bool(host_spill), *observers),
        make=partial(Probe, moments=moments or (), loud=loud),
    )
    drive.run()
    run = _result(prepared, peak, drive, memory, notes, is_baseline=drive.fidelity is not None)
    if host_spill:
        # The what-if range is computed by replays without host memory, so it is omitted.
        return replace(run, spill=spill.result(host_spill, drive.allocator.device.spilled))
    known = None
    if moments is not None and drive.given_up_at is None:
        known = frozenset(moments[number] for number in loud)
    return _with_peaks(prepared, setting, drive, run, known)


def _with_peaks(
    prepared: Prepared,
    setting: Setting,
    drive: Drive,
    run: DeviceRun,
    loud: frozenset[int] | None,
) -> DeviceRun:
    peak = None if run.stopped_at is not None else run.peak_reserved_bytes
    peaks = peaks_by_start(prepared, setting, run.device_memory, drive.start, peak)
    if peaks is not None:
        run = replace(run, peaks=peaks, inferred=(*run.inferred, *peak_notes(peaks)))
    if prepared.is_recorded(setting):
        return run
    # If the caller requested an address policy, no other policies are tried.
    tries_addresses = drive.dictates or drive.allocator.device.policy == prepared.addresses.policy
    find = partial(left_open, prepared, setting, run, loud, tries_addresses=tries_addresses)
    return replace(run, find_left_open=Deferred(find))


def _result(
    prepared: Prepared,
    peak: PeakWatch,
    drive: Drive,
    memory: int | None,
    notes: list[str],
    *,
    is_baseline: bool,
) -> DeviceRun:
    allocator, timeline = drive.allocator, drive.timeline.build(drive.plan.steps.entry)
    fidelity = None
    if is_baseline:
        assert drive.fidelity is not None
        fidelity = drive.fidelity.result(allocator)
    elif drive.dictates:  # a proof by an equivalent setting
        timeline = timeline.at(drive.plan.steps.is_of_program[: len(timeline.entry)])
    # A baseline is itself the proof; for a what-if, `with_proof` or the first use makes it.
    find = partial(parting_of, prepared)
    if fidelity is not None and drive.dictates and prepared.is_own_release:
        find = partial(fidelity.parting_of, prepared.trace.device)
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
        timeline=timeline,
        peak=peak.state,
        ooms=tuple(drive.ooms),
        fidelity=fidelity,
        inferred=tuple(notes),
        stopped_at=drive.stopped_at,
        find_parting=Deferred(find),
        refused_below=drive.refused_below,
        driver_calls=driver_calls_of(allocator.device.calls),
    )


_REQUESTS = (
    StepKind.ALLOC, StepKind.OOM, StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE,
    StepKind.EMPTY_CACHE,
)  # fmt: skip
_SILENT = tuple(kind for kind in StepKind if kind not in _REQUESTS)
"""Kinds of steps that are no malloc, free or empty_cache, such as a change of settings."""


class Walk:
    """Step-by-step replay of one device.

    notes: sentences on facts that the recording does not contain and that were inferred.
    at: index in the plan of the next step (allocator call).
    parting: first difference of a full replay from the recording; None if there is none.
    """

    parting: Parting | None

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self._drive, _, self.notes = unstarted_drive(prepared, prepared.recorded, None)
        self.parting = parting_of(prepared)  # by a separate replay; this one is not compared
        self._drive.fidelity = None
        self.at = 0

    @property
    def allocator(self) -> ReplayAllocator:
        return self._drive.allocator

    def go_to(self, entry: int) -> None:
        """Run all steps before the request or free that left the recorded entry `entry`."""
        if not 0 <= entry < len(self.prepared.trace):
            what = f"there is no such entry; expected 0 to {len(self.prepared.trace) - 1}"
            raise RecordingError(self.prepared.path, what, entry=entry)
        action, addr = self.prepared.trace.action, self.prepared.trace.addr
        # The completion of an immediate free belongs to the step of its free_requested.
        is_end = entry > 0 and action[entry] == Action.FREE_COMPLETED
        if is_end and action[entry - 1] == Action.FREE_REQUESTED and addr[entry - 1] == addr[entry]:
            entry -= 1
        steps = self._drive.plan.steps.entry
        target = self.at + int(
            np.argmax(np.append(steps[self.at :], len(self.prepared.trace)) >= entry)
        )
        for start in range(self.at, target, PAUSE_EVERY):
            self._drive._run_range(start, min(start + PAUSE_EVERY, target))
            self.allocator.take_history()
        self.at = target

    def upcoming(self) -> tuple[int, Step] | None:
        """Run the steps before the next malloc, free or empty_cache; return its entry and step.

        Returns None if no such step follows.
        """
        steps = self._drive.plan.steps
        while self.at < len(steps) and steps.kind[self.at] in _SILENT:
            self.run_step()
        if self.at == len(steps):
            return None
        return int(steps.entry[self.at]), next(steps.rows(self.at, self.at + 1))

    def address_of(self, kind: StepKind, recorded_address: int) -> int | None:
        """Return the address in this replay of the block recorded at `recorded_address`, or None.

        kind: FREE_COMPLETE to look only among blocks that wait for their free to complete.
        """
        block = self.allocator.named_blocks.get(recorded_address)
        if kind == StepKind.FREE_COMPLETE:
            free = self._drive._waiting.get(recorded_address)
            block = None if free is None else free.block
        return None if block is None else block.ptr

    def run_step(self) -> SimulatedOom | None:
        known = len(self._drive.ooms)
        self._drive._run_range(self.at, self.at + 1)
        self.at += 1
        return self._drive.ooms[-1] if len(self._drive.ooms) > known else None
