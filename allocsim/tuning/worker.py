"""One job of a sweep, carried out in whatever process it lands in.

Rule: a job carries the path of a recording, never its entries; a process reads and plans each
recording once and keeps the last few.  A job always yields an outcome: what goes wrong with the
input or in PyTorch's stead is the outcome's `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from allocsim.core import Block, CachingAllocator
from allocsim.core.constants import PAGE, UNLIMITED
from allocsim.engine import GiveUpError, Observer, SimulatedOom
from allocsim.engine.fold import fold, fold_allocated
from allocsim.engine.rerun import Rerun
from allocsim.errors import AllocsimError
from allocsim.trace import load
from allocsim.tuning.bounds import LivePeak, needed_of
from allocsim.tuning.floor import Demand, Floor
from allocsim.tuning.outcome import Outcome, outcome_of
from allocsim.tuning.pareto import Bar, Point, is_hopeless
from allocsim.tuning.setting import Setting
from allocsim.tuning.smallest import Found, find_smallest

__all__ = ["Job", "keep", "rerun_of", "run_job"]

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
    than an outcome has.  known: what it came to on `device_memory`, where a replay has told.
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
    known: Outcome | None = None


class _Kept:
    """Recordings that this process has read, the last `_MOST`; planned ones likewise."""

    def __init__(self) -> None:
        self.reruns: dict[tuple[str, int, str | None], Rerun] = {}
        self.peaks: dict[tuple[str, int, str | None], LivePeak] = {}
        self.demands: dict[tuple[str, int, str | None], Demand] = {}

    def put(self, key: tuple[str, int, str | None], rerun: Rerun) -> None:
        self._drop(key)  # the file may be another one by now
        while len(self.reruns) >= _MOST:
            self._drop(next(iter(self.reruns)))
        self.reruns[key] = rerun

    def _drop(self, key: tuple[str, int, str | None]) -> None:
        self.reruns.pop(key, None)
        self.peaks.pop(key, None)
        self.demands.pop(key, None)


_KEPT = _Kept()


def keep(path: str, rerun: Rerun, torch_version: str) -> None:
    """Let jobs on `path` in this process, and in those forked from it, find `rerun`."""
    _KEPT.put((path, rerun.trace.device, torch_version), rerun)


def rerun_of(path: str, device: int, torch_version: str | None) -> Rerun:
    """The recording at `path`, loaded and planned; kept for the next job of this process."""
    key = (path, device, torch_version)
    if key not in _KEPT.reruns:
        _KEPT.put(key, Rerun(load(path), device, torch_version))
    return _KEPT.reruns[key]


def run_job(job: Job) -> Outcome:
    """Carry a job out."""
    try:
        rerun = rerun_of(job.path, job.device, job.torch_version)
        tight = None
        if job.within is not None:
            tight = _drive(rerun, job, job.within, _Watch(gives_up=True))
            if tight.dropped_at is not None:
                return tight
        outcome = job.known
        if outcome is None:
            watch = _watch(job, rerun) if job.bar else _Watch()
            outcome = _drive(rerun, job, job.device_memory, watch)
        return _Capacity(rerun, job, tight).told(outcome) if outcome.is_whole else outcome
    except AllocsimError as error:
        return Outcome(error=str(error))


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
        if not self._bar:
            return
        device, limit = allocator.device, allocator.memory_limit
        room = device.total - device.context_memory
        if self.least > (room if limit is None else min(room, limit)):
            raise GiveUpError
        if self._floor is not None:
            self._floor.began(allocator)
            self.least = max(self.least, self._floor.reserved)

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        """See `Observer`."""
        device = allocator.device
        self.peak_device_bytes = max(self.peak_device_bytes, device.used + device.context_memory)
        if self._at_retry and allocator.heap.stats.num_alloc_retries:
            raise GiveUpError
        if not self._bar:
            return
        self.least = max(self.least, allocator.reserved_bytes)
        if self._floor is not None:
            self._floor.grew(allocator, entry)
            self.least = max(self.least, self._floor.reserved)
        stats = allocator.heap.stats
        calls = stats.num_device_alloc + stats.num_device_free
        if calls >= self._fewest_calls:
            so_far = Point(self.least, calls, stats.num_alloc_retries)
            if is_hopeless(self._bar, so_far):
                raise GiveUpError

    def out_of_memory(
        self, allocator: CachingAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None:
        """See `Observer`."""
        del allocator, oom, blocks
        if self._gives_up:
            raise GiveUpError


def _drive(rerun: Rerun, job: Job, memory: int | None, watch: _Watch) -> Outcome:
    setting = job.setting
    drive = rerun.drive(
        setting.conf,
        memory,
        memory_fraction=setting.call_fraction,
        observer=watch,
        skips=job.skips,
        fast_path=job.fast_path,
        folder=fold_allocated if job.fast_path else fold,
    )
    if drive.given_up_at is not None:
        given_up = outcome_of(
            drive.allocator,
            peak_device_bytes=watch.peak_device_bytes,
            ooms=drive.ooms,
            entries=drive.given_up_at + 1 - drive.skipped,
            dropped_at=drive.given_up_at,
        )
        return replace(given_up, least_peak=watch.least, skipped=drive.skipped)
    held = rerun.context_memory + sum(segment.total_size for segment in rerun.start)
    config = drive.allocator.config
    frees_unasked = config.max_split_size != UNLIMITED or config.garbage_collection_threshold > 0
    stopped = drive.stopped_at
    done = drive.n_entries if stopped is None else stopped + 1
    outcome = outcome_of(
        drive.allocator,
        peak_device_bytes=max(watch.peak_device_bytes, held),
        ooms=drive.ooms,
        entries=done - drive.skipped,
        empties=rerun.plan.n_empty_cache > 0 and not frees_unasked,
    )
    return replace(outcome, skipped=drive.skipped)


class _Capacity:
    """Which device the setting of a job needs.

    tight: the outcome on `job.within`, where it went through.
    """

    def __init__(self, rerun: Rerun, job: Job, tight: Outcome | None) -> None:
        self._rerun = rerun
        self._job = job
        self._tight = tight
        self._replayed = 0 if tight is None else tight.entries
        self._expandable = job.setting.config(rerun.release).expandable_segments

    def told(self, outcome: Outcome) -> Outcome:
        """`outcome` with the devices that the job asks for."""
        job = self._job
        # A fraction is one of the device, so that its limit moves with the size asked about.
        is_free = not outcome.refused and job.setting.fraction(self._rerun.release) is None
        if is_free and job.from_peak and not self._expandable:
            outcome = replace(outcome, unrefused_device=outcome.peak_device_bytes)
        elif is_free and (job.confirms or not job.from_peak):
            found = self._find(lambda tried: not tried.refused, self._pages(outcome), at_retry=True)
            size = None if found is None else self._bytes(found[0])
            outcome = replace(outcome, unrefused_device=size)
        if job.finds:
            found = self._smallest(outcome)
            outcome = outcome if found is None else self._with_smallest(outcome, *found)
        return replace(outcome, entries=outcome.entries + self._replayed)

    def _smallest(self, outcome: Outcome) -> Found | None:
        known = outcome if outcome.unrefused_device == outcome.peak_device_bytes else None
        first = self._pages(outcome)
        if self._tight is not None and self._job.within is not None:
            known, first = self._tight, self._pages_of(self._job.within)
        return self._find(lambda tried: tried.oom_entry is None, first, known)

    def _find(
        self,
        does: Callable[[Outcome], bool],
        first: int,
        known: Outcome | None = None,
        *,
        at_retry: bool = False,
    ) -> Found | None:
        job = self._job
        live = _live_peak(job, self._rerun).under(None)
        least = max(-(-live // PAGE), 1)

        def trial(pages: int) -> Outcome | None:
            return self._trial(pages, _Watch(gives_up=True, at_retry=at_retry))

        liked = self._liked if job.from_peak and at_retry else None
        return find_smallest(trial, does, least=least, first=first, known=known, liked=liked)

    def _liked(self, outcome: Outcome) -> int | None:
        return None if outcome.refused else self._pages(outcome)

    def _pages(self, outcome: Outcome) -> int:
        return self._pages_of(outcome.peak_device_bytes)

    def _pages_of(self, memory: int) -> int:
        return max(-(-(memory - self._rerun.context_memory) // PAGE), 1)

    def _trial(self, pages: int, watch: _Watch) -> Outcome | None:
        try:
            tried = _drive(self._rerun, self._job, self._bytes(pages), watch)
        except AllocsimError:
            return None
        self._replayed += tried.entries
        return tried

    def _bytes(self, pages: int) -> int:
        return pages * PAGE + self._rerun.context_memory

    def _with_smallest(
        self, outcome: Outcome, pages: int, tried: Outcome, fails_at: int | None
    ) -> Outcome:
        at_min = (tried.num_alloc_retries, tried.num_device_alloc, tried.num_device_free)
        return replace(
            outcome, min_device_memory=self._bytes(pages), fails_at=fails_at, at_min=at_min
        )


def _watch(job: Job, rerun: Rerun) -> _Watch:
    """Of a grid: with all that is known of what the setting of the job will reserve."""
    key = (job.path, rerun.trace.device, job.torch_version)
    if key not in _KEPT.demands:
        _KEPT.demands[key] = Demand(rerun)
    config = job.setting.config(rerun.release)
    return _Watch(job.bar, _live_peak(job, rerun).under(config), _KEPT.demands[key].floor(config))


def _live_peak(job: Job, rerun: Rerun) -> LivePeak:
    key = (job.path, rerun.trace.device, job.torch_version)
    if key not in _KEPT.peaks:
        _KEPT.peaks[key] = LivePeak(needed_of(rerun.trace))
    return _KEPT.peaks[key]
