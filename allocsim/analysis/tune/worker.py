"""Replay one setting on one device of a recording, in this process or in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from allocsim.analysis.tune.lower_bound import (
    Bounds,
    Demand,
    Floor,
    LivePeak,
    bounds_of,
    shortest_lifetimes,
)
from allocsim.core import PAGE, UNLIMITED, Block, CachingAllocator
from allocsim.errors import AllocsimError
from allocsim.metrics import period_starts
from allocsim.recommend import Bar, is_hopeless
from allocsim.recording import load
from allocsim.replaying import (
    Point,
    Prepared,
    Smallest,
    Trial,
    device_of,
    find_smallest,
    is_recorded_device,
    pages_needed,
    parting_of,
    prepare,
    trial_of,
    unstarted_drive,
    with_peaks,
)
from allocsim.simulation import (
    Drive,
    GiveUpError,
    Hints,
    Observer,
    Parting,
    Setting,
    SimulatedOom,
    fold,
    fold_allocated,
)

MOST_KEPT, MOST_ENTRIES = 8, 1_000_000
"""Limits of a process's cache: 8 recorded devices, or more with up to a million entries in all."""


@dataclass(frozen=True, slots=True)
class Tricks:
    """Shortcuts of a search that do not change its answer.

    equivalent: replay only one of several settings with the same effect on the recording.
    drop: end a replay early if a finished setting is better in memory, driver calls and retries, or
        if a request fails on the smallest device found so far.
    from_peak: use the peak as the smallest device if they are certainly equal; if not, begin the
        search for the smallest device near the peak.
    repeats: skip repeated training steps that leave the allocator's state unchanged.
    fast_path: replay in batches, without statistics that a search does not need.
    """

    equivalent: bool = True
    drop: bool = True
    from_peak: bool = True
    repeats: bool = True
    fast_path: bool = True


EXHAUSTIVE = Tricks(equivalent=False, drop=False, from_peak=False, repeats=False, fast_path=False)
"""Search without shortcuts."""


@dataclass(frozen=True, slots=True)
class Job:
    """One setting to replay on one device of one recording.

    key: name of the job in a results file.
    path: file of the recording.
    device, device_memory: device number, and bytes of device memory for the replay.
    bar: memory, driver calls and retries of finished settings; the replay ends early if a finished
        setting is better.
    finds: True to find the smallest device memory under which every request succeeds.
    within: bytes of a smaller device to try first; the job ends if a request fails there.  None to
        omit this trial.
    confirms: True to find the smallest device memory with which the driver refuses no call, even if
        this takes extra replays.
    known: result of an earlier replay on `device_memory`, which is then not repeated; or None.
    as_recorded: True to compare the replay with the recording, if setting and device are the
        recorded ones.
    assumed_memory: bytes of the recorded device as given by the user; None to use the recording.
    """

    key: str
    path: str
    device: int
    torch_version: str
    setting: Setting
    device_memory: int | None
    bar: Bar = ()
    finds: bool = False
    within: int | None = None
    confirms: bool = False
    tricks: Tricks = Tricks()
    known: Trial | None = None
    as_recorded: bool = False
    assumed_memory: int | None = None
    hints: Hints = Hints()  # noqa: RUF009  (frozen)


class _Kept:
    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared

    @cached_property
    def live_peak(self) -> LivePeak:
        return LivePeak(shortest_lifetimes(self.prepared.trace), period_starts(self.prepared))

    @cached_property
    def demand(self) -> Demand:
        return Demand(self.prepared)


_KEPT: dict[tuple[str, int, str | None, int | None, Hints], _Kept] = {}
"""Cache of devices that are ready for replays.

The keys are (path, device number, PyTorch release, memory that the user gave, hints).
"""
load_once = lru_cache(maxsize=1)(load)  # so that a recording with several devices is read once


def keep(path: str, prepared: Prepared, torch_version: str, assumed: int | None = None) -> None:
    """Cache a recorded device for jobs on `path`, in this process and processes forked from it.

    assumed: bytes of the recorded device as given by the user; None to use the recording.
    """
    key = (path, prepared.trace.device, torch_version, assumed, prepared.hints)
    _KEPT.pop(key, None)  # the file may have changed
    while not can_keep((*(kept.prepared for kept in _KEPT.values()), prepared)):
        _KEPT.pop(next(iter(_KEPT)))
    _KEPT[key] = _Kept(prepared)


def can_keep(devices: Sequence[Prepared]) -> bool:
    return len(devices) <= MOST_KEPT or sum(len(each.trace) for each in devices) <= MOST_ENTRIES


def _kept(job: Job) -> _Kept:
    key = (job.path, job.device, job.torch_version, job.assumed_memory, job.hints)
    if key not in _KEPT:
        recording = load_once(job.path)
        (prepared,) = prepare(recording, job.device, job.torch_version, hints=job.hints)
        keep(job.path, prepared.on(job.assumed_memory), job.torch_version, job.assumed_memory)
    return _KEPT[key]


def run_job(job: Job) -> Trial:
    try:
        kept = _kept(job)
        tight = None
        if job.within is not None:
            tight = _drive(kept.prepared, job, job.within, _Watch(gives_up=True))
            if tight.dropped_at is not None:
                return tight
        trial = job.known
        if trial is None and job.as_recorded:
            trial = _as_recorded(kept.prepared, job)
        if trial is None:
            watch = _Watch()
            if job.bar:
                config = job.setting.config(kept.prepared.release)
                watch = _Watch(job.bar, kept.live_peak.under(config), kept.demand.floor(config))
            trial = _drive(kept.prepared, job, job.device_memory, watch)
        return _Devices(kept, job, tight).added_to(trial) if trial.is_whole else trial
    except AllocsimError as error:
        return Trial(conf=job.setting.conf, error=str(error))


def bounds_for(job: Job) -> Bounds:
    return bounds_of(_kept(job).prepared)


def parting_for(job: Job) -> Parting | None:
    return parting_of(_kept(job).prepared)


class _Watch(Observer):
    def __init__(
        self,
        bar: Bar = (),
        least: int = 0,
        floor: Floor | None = None,
        *,
        gives_up: bool = False,
        at_retry: bool = False,
    ) -> None:
        self.peak_device_bytes = 0
        self.least = least
        self._floor = floor
        self._bar = bar
        self._fewest_calls = min((point.calls for point, _ in bar), default=0)
        self._gives_up = gives_up
        self._at_retry = at_retry

    def began(self, allocator: CachingAllocator) -> None:
        device, limit = allocator.device, allocator.memory_limit
        self.peak_device_bytes = device.held
        if not self._bar:
            return
        room = device.total - device.context_memory
        if self.least > (room if limit is None else min(room, limit)):
            raise GiveUpError
        if self._floor is not None:
            self._floor.began(allocator)
            self.least = max(self.least, self._floor.reserved)

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        self.peak_device_bytes = max(self.peak_device_bytes, allocator.device.held)
        calls = allocator.calls
        if self._at_retry and calls.retries:
            raise GiveUpError
        if not self._bar:
            return
        self.least = max(self.least, allocator.reserved_bytes)
        if self._floor is not None:
            self._floor.grew(allocator, entry)
            self.least = max(self.least, self._floor.reserved)
        if calls.of_driver >= self._fewest_calls:
            so_far = Point(self.least, calls.of_driver, calls.retries)
            if is_hopeless(self._bar, so_far):
                raise GiveUpError

    def out_of_memory(
        self, allocator: CachingAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None:
        del allocator, oom, blocks
        if self._gives_up:
            raise GiveUpError


def _drive(prepared: Prepared, job: Job, memory: int | None, watch: _Watch) -> Trial:
    drive = prepared.drive(
        job.setting,
        memory,
        observers=(watch,),
        skips=job.tricks.repeats,
        fast_path=job.tricks.fast_path,
        folder=fold_allocated if job.tricks.fast_path else fold,
    )
    trial = trial_of(
        drive,
        job.setting.conf,
        peak_device_bytes=watch.peak_device_bytes,
        empties=_empties(prepared, drive) and drive.given_up_at is None,
    )
    if memory == job.device_memory:
        trial = with_peaks(trial, prepared, job.setting, memory)
    return trial if trial.is_whole else replace(trial, least_peak=watch.least)


def _empties(prepared: Prepared, drive: Drive) -> bool:
    config = drive.allocator.config
    frees_unasked = config.max_split_size != UNLIMITED or config.garbage_collection_threshold > 0
    return prepared.plan.empties_cache and not frees_unasked


def _as_recorded(prepared: Prepared, job: Job) -> Trial | None:
    memory = job.device_memory
    asked = None if memory == device_of(prepared)[0] else memory
    is_same = job.setting == prepared.recorded and prepared.is_own_release
    if not is_same or not is_recorded_device(prepared, asked):
        return None
    watch = _Watch()
    drive, _, _ = unstarted_drive(prepared, job.setting, asked, observers=(watch,))
    drive.run()
    assert drive.fidelity is not None
    parted = drive.fidelity.result(drive.allocator).first_mismatch
    trial = trial_of(
        drive,
        job.setting.conf,
        peak_device_bytes=watch.peak_device_bytes,
        empties=_empties(prepared, drive),
    )
    at = None
    if parted is not None:
        at = len(prepared.trace) if parted.entry is None else parted.entry
    return replace(trial, was_compared=True, parts_at=at)


class _Devices:
    def __init__(self, kept: _Kept, job: Job, tight: Trial | None) -> None:
        self._kept = kept
        self._prepared = prepared = kept.prepared
        self._job = job
        self._tight = tight
        self._replayed = 0 if tight is None else tight.entries
        self._expandable = job.setting.config(prepared.release).expandable_segments

    def added_to(self, trial: Trial) -> Trial:
        job = self._job
        is_free = not trial.refused and not self._prepared.depends_on_device(job.setting)
        if is_free and job.tricks.from_peak and not self._expandable:
            trial = replace(trial, unrefused_device=trial.peak_device_bytes)
        elif is_free and (job.confirms or not job.tricks.from_peak):
            found = self._find(
                lambda tried: not tried.refused, self._pages(trial.peak_device_bytes), at_retry=True
            )
            size = None if found is None else self._bytes(found.steps)
            trial = replace(trial, unrefused_device=size)
        found = self._smallest(trial) if job.finds else None
        if found is not None:
            there = found.trial
            trial = replace(
                trial,
                min_device_memory=self._bytes(found.steps),
                fails_at=found.fails_at,
                at_min=(there.num_alloc_retries, there.num_device_alloc, there.num_device_free),
            )
        return replace(trial, entries=trial.entries + self._replayed)

    def _smallest(self, trial: Trial) -> Smallest | None:
        known = trial if trial.unrefused_device == trial.peak_device_bytes else None
        first = self._pages(trial.peak_device_bytes)
        if self._tight is not None and self._job.within is not None:
            known, first = self._tight, self._pages(self._job.within)
        return self._find(lambda tried: tried.oom_entry is None, first, known)

    def _find(
        self,
        holds: Callable[[Trial], bool],
        first: int,
        known: Trial | None = None,
        *,
        at_retry: bool = False,
    ) -> Smallest | None:
        def trial(pages: int) -> Trial | None:
            return self._trial(pages, _Watch(gives_up=True, at_retry=at_retry))

        def peak(trial: Trial) -> int | None:
            return None if trial.refused else self._pages(trial.peak_device_bytes)

        def needed(trial: Trial) -> int | None:
            return pages_needed(trial, self._prepared.context_memory)

        return find_smallest(
            trial,
            holds,
            least=max(-(-self._kept.live_peak.under(None) // PAGE), 1),
            first=first,
            known=known,
            peak=peak if self._job.tricks.from_peak and at_retry else None,
            needed=None if at_retry else needed,
        )

    def _pages(self, memory: int) -> int:
        return max(-(-(memory - self._prepared.context_memory) // PAGE), 1)

    def _trial(self, pages: int, watch: _Watch) -> Trial | None:
        try:
            tried = _drive(self._prepared, self._job, self._bytes(pages), watch)
        except AllocsimError:
            return None
        self._replayed += tried.entries
        return tried

    def _bytes(self, pages: int) -> int:
        return pages * PAGE + self._prepared.context_memory
