"""One job of a sweep, carried out in whatever process it lands in.

Rule: a job carries the path of a recording, never its entries; a process reads and plans each
recording once and keeps the last few.  A job always yields an trial: what goes wrong with the
input or in PyTorch's stead is the trial's `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from allocsim.core import PAGE, UNLIMITED, Block, CachingAllocator
from allocsim.engine import (
    GiveUpError,
    Observer,
    Point,
    Prepared,
    Setting,
    SimulatedOom,
    Smallest,
    Trial,
    find_smallest,
    fold,
    fold_allocated,
    pages_needed,
    prepare,
    trial_of,
)
from allocsim.errors import AllocsimError
from allocsim.measures import Bar, is_hopeless
from allocsim.questions.tune.bounds import LivePeak, needed_of
from allocsim.questions.tune.floor import Demand, Floor
from allocsim.trace import load

__all__ = ["Job", "keep", "prepared_of", "run_job"]

_MOST = 8
"""Recordings that a process keeps; a job of several ranks comes back to each of them."""


@dataclass(frozen=True, slots=True)
class Job:
    """One setting on one device of one recording.

    key: names it in a file of results.  device_memory: bytes, None for a device without end.
    bar: points that make a setting hopeless, see `is_hopeless`.  finds: whether to look for
    the smallest device; within: bytes on which the setting must go through, else it is given
    up.  confirms: whether the smallest device without a refusal is worth replays of its own.
    from_peak: whether it may be told from the peak.  skips: whether steps that change nothing
    may be passed over.  fast_path: whether plain steps may be taken in rows, and no more counted
    than an trial has.  known: what it came to on `device_memory`, where a replay has told.
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
    from_peak: bool = True
    skips: bool = True
    fast_path: bool = True
    known: Trial | None = None


class _Kept:
    """Recordings that this process has read, the last `_MOST`; planned ones likewise."""

    def __init__(self) -> None:
        self.devices: dict[tuple[str, int, str | None], Prepared] = {}
        self.peaks: dict[tuple[str, int, str | None], LivePeak] = {}
        self.demands: dict[tuple[str, int, str | None], Demand] = {}

    def put(self, key: tuple[str, int, str | None], prepared: Prepared) -> None:
        self._drop(key)  # the file may be another one by now
        while len(self.devices) >= _MOST:
            self._drop(next(iter(self.devices)))
        self.devices[key] = prepared

    def _drop(self, key: tuple[str, int, str | None]) -> None:
        self.devices.pop(key, None)
        self.peaks.pop(key, None)
        self.demands.pop(key, None)


_KEPT = _Kept()


def keep(path: str, prepared: Prepared, torch_version: str) -> None:
    """Let jobs on `path` in this process, and in those forked from it, find `prepared`."""
    _KEPT.put((path, prepared.trace.device, torch_version), prepared)


def prepared_of(path: str, device: int, torch_version: str | None) -> Prepared:
    """The recording at `path`, loaded and planned; kept for the next job of this process."""
    key = (path, device, torch_version)
    if key not in _KEPT.devices:
        _KEPT.put(key, prepare(load(path), device, torch_version)[0])
    return _KEPT.devices[key]


def run_job(job: Job) -> Trial:
    """Carry a job out."""
    try:
        prepared = prepared_of(job.path, job.device, job.torch_version)
        tight = None
        if job.within is not None:
            tight = _drive(prepared, job, job.within, _Watch(gives_up=True))
            if tight.dropped_at is not None:
                return tight
        trial = job.known
        if trial is None:
            watch = _watch(job, prepared) if job.bar else _Watch()
            trial = _drive(prepared, job, job.device_memory, watch)
        return _Devices(prepared, job, tight).added_to(trial) if trial.is_whole else trial
    except AllocsimError as error:
        return Trial(conf=job.setting.conf, error=str(error))


class _Watch(Observer):
    """Notes how much the device held, and gives a setting up that can no longer win.

    least: bytes that the peak will surely reach; floor: tells more of that on the way.
    gives_up: at the first request without an answer; at_retry: at the first that the driver
    refused, too.
    """

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
        """See `Observer`.  What is sure not to fit cannot win against what went through."""
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
        """See `Observer`."""
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
        """See `Observer`."""
        del allocator, oom, blocks
        if self._gives_up:
            raise GiveUpError


def _drive(prepared: Prepared, job: Job, memory: int | None, watch: _Watch) -> Trial:
    drive = prepared.drive(
        job.setting,
        memory,
        observers=(watch,),
        skips=job.skips,
        fast_path=job.fast_path,
        folder=fold_allocated if job.fast_path else fold,
    )
    config = drive.allocator.config
    frees_unasked = config.max_split_size != UNLIMITED or config.garbage_collection_threshold > 0
    trial = trial_of(
        drive,
        job.setting.conf,
        peak_device_bytes=watch.peak_device_bytes,
        empties=prepared.plan.n_empty_cache > 0 and not frees_unasked and drive.given_up_at is None,
    )
    return trial if trial.is_whole else replace(trial, least_peak=watch.least)


class _Devices:
    """Which devices the setting of a job needs.

    tight: the trial on `job.within`, where it went through.
    """

    def __init__(self, prepared: Prepared, job: Job, tight: Trial | None) -> None:
        self._prepared = prepared
        self._job = job
        self._tight = tight
        self._replayed = 0 if tight is None else tight.entries
        self._expandable = job.setting.config(prepared.release).expandable_segments

    def added_to(self, trial: Trial) -> Trial:
        """`trial` with the devices that the job asks for."""
        job = self._job
        # A fraction is one of the device, so that its limit moves with the size asked about.
        is_free = not trial.refused and job.setting.fraction(self._prepared.release) is None
        if is_free and job.from_peak and not self._expandable:
            trial = replace(trial, unrefused_device=trial.peak_device_bytes)
        elif is_free and (job.confirms or not job.from_peak):
            found = self._find(lambda tried: not tried.refused, self._pages(trial), at_retry=True)
            size = None if found is None else self._bytes(found.steps)
            trial = replace(trial, unrefused_device=size)
        if job.finds:
            found = self._smallest(trial)
            trial = trial if found is None else self._with_smallest(trial, found)
        return replace(trial, entries=trial.entries + self._replayed)

    def _smallest(self, trial: Trial) -> Smallest | None:
        known = trial if trial.unrefused_device == trial.peak_device_bytes else None
        first = self._pages(trial)
        if self._tight is not None and self._job.within is not None:
            known, first = self._tight, self._pages_of(self._job.within)
        return self._find(lambda tried: tried.oom_entry is None, first, known)

    def _find(
        self,
        holds: Callable[[Trial], bool],
        first: int,
        known: Trial | None = None,
        *,
        at_retry: bool = False,
    ) -> Smallest | None:
        job = self._job
        live = _live_peak(job, self._prepared).under(None)
        least = max(-(-live // PAGE), 1)

        def trial(pages: int) -> Trial | None:
            return self._trial(pages, _Watch(gives_up=True, at_retry=at_retry))

        return find_smallest(
            trial,
            holds,
            least=least,
            first=first,
            known=known,
            peak=self._peak if job.from_peak and at_retry else None,
            needed=None if at_retry else self._needed,
        )

    def _peak(self, trial: Trial) -> int | None:
        return None if trial.refused else self._pages(trial)

    def _needed(self, trial: Trial) -> int | None:
        return pages_needed(trial, self._prepared.context_memory)

    def _pages(self, trial: Trial) -> int:
        return self._pages_of(trial.peak_device_bytes)

    def _pages_of(self, memory: int) -> int:
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

    def _with_smallest(self, trial: Trial, found: Smallest) -> Trial:
        there = found.trial
        return replace(
            trial,
            min_device_memory=self._bytes(found.steps),
            fails_at=found.fails_at,
            at_min=(there.num_alloc_retries, there.num_device_alloc, there.num_device_free),
        )


def _watch(job: Job, prepared: Prepared) -> _Watch:
    """Of a grid: with all that is known of what the setting of the job will reserve."""
    key = (job.path, prepared.trace.device, job.torch_version)
    if key not in _KEPT.demands:
        _KEPT.demands[key] = Demand(prepared)
    config = job.setting.config(prepared.release)
    return _Watch(
        job.bar, _live_peak(job, prepared).under(config), _KEPT.demands[key].floor(config)
    )


def _live_peak(job: Job, prepared: Prepared) -> LivePeak:
    key = (job.path, prepared.trace.device, job.torch_version)
    if key not in _KEPT.peaks:
        _KEPT.peaks[key] = LivePeak(needed_of(prepared.trace))
    return _KEPT.peaks[key]
