"""Trials: results of replays of a recording under various settings, one trial for each setting.

A trial contains only plain values, so it can be sent to other processes and stored in files.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from allocsim.core import Block, CachingAllocator
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.replaying.equivalence import Effect
from allocsim.replaying.prepared import Prepared
from allocsim.replaying.uncertainty import peaks_by_start, range_of
from allocsim.simulation import (
    DeviceRun,
    Drive,
    DriverCalls,
    GiveUpError,
    Observer,
    Progress,
    Setting,
    SimulatedOom,
    StartPeaks,
    Timeline,
    driver_calls_of,
    fold_allocated,
)


class Point(NamedTuple):
    """Numbers by which settings are compared; they never decrease while a replay runs.

    memory: peak reserved bytes.
    calls: number of driver calls.
    retries: `num_alloc_retries` of memory_stats().
    """

    memory: int
    calls: int
    retries: int

    def is_beyond(self, standing: Standing) -> bool:
        """Return True if an unfinished replay with these numbers cannot be better than `standing`.

        This is so if `standing` reserves less memory and has no more retries.
        """
        return self.memory > standing.memory and self.retries >= standing.retries


class Standing(NamedTuple):
    """Results of a setting under which every request succeeds, to compare other settings with.

    A setting is not better if a request fails, or if it reserves more memory without fewer retries.

    memory, retries: peak reserved bytes, and `num_alloc_retries` of memory_stats().
    """

    memory: int
    retries: int


@dataclass(frozen=True, slots=True)
class Trial:
    """Results of one replay.  Sizes are in bytes; num_* are statistics of memory_stats().

    peak_device_bytes: peak memory of the device, including the CUDA context and rounding to pages.
    num_maps: number of the calls in num_device_alloc that map memory of expandable segments.
    driver_calls: (name, bytes, number) of the driver calls of each name and size.
    obtained_small, obtained_large: total memory that the small and the large pool obtained from the
        driver.
    returned_bytes: total memory returned to the driver.
    refused: True if the driver may have refused a call.
    unrefused_device: smallest device that refuses no driver call; None if unknown.
    min_device_memory: smallest device that serves every request; None if no search was made.
    fails_at: entry that fails on a device 2 MiB smaller than min_device_memory.
    at_min: (num_alloc_retries, num_device_alloc, num_device_free) on min_device_memory.
    oom_entry: entry of the first out-of-memory error; None without an error.
    needed_bytes: smallest device that would have served the request at oom_entry in the same state.
    refused_below: every device smaller than this has the same first out-of-memory error.
    dropped_at: entry at which the replay was ended early, after a failed request or because the
        setting could not be the best; None if it was not ended early.
    least_peak: lower bound of peak_reserved_bytes; 0 if unknown.
    was_compared: True if the setting is the recorded one, and the replay was compared with the
        recording.
    parts_at: entry of the first difference from the recording, or the number of entries if only the
        final segments differ; None without a difference.
    skipped: number of entries that were not replayed, because they repeat earlier entries.
    peak_kept: peak reserved bytes if the replay starts with the recorded segments; None if unknown.
    peak_anew: peak reserved bytes if the replay starts empty and first requests the blocks that
        were live when the recording began; None if unknown.
    error: reason why there are no numbers; None without an error.
    """

    conf: str = ""
    peak_reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_device_bytes: int = 0
    num_alloc_retries: int = 0
    num_device_alloc: int = 0
    num_device_free: int = 0
    num_sync_all_streams: int = 0
    num_ooms: int = 0
    num_maps: int = 0
    driver_calls: DriverCalls = ()
    obtained_small: int = 0
    obtained_large: int = 0
    returned_bytes: int = 0
    refused: bool = False
    unrefused_device: int | None = None
    min_device_memory: int | None = None
    fails_at: int | None = None
    at_min: tuple[int, int, int] | None = None
    oom_entry: int | None = None
    needed_bytes: int | None = None
    refused_below: int | None = None
    dropped_at: int | None = None
    least_peak: int = 0
    was_compared: bool = False
    parts_at: int | None = None
    entries: int = 0
    skipped: int = 0
    peak_kept: int | None = None
    peak_anew: int | None = None
    error: str | None = None

    @property
    def point(self) -> Point:
        """Numbers by which settings are compared; its memory is at least `least_peak`."""
        calls = self.num_device_alloc + self.num_device_free
        return Point(max(self.peak_reserved_bytes, self.least_peak), calls, self.num_alloc_retries)

    @property
    def is_whole(self) -> bool:
        return self.dropped_at is None and self.error is None

    @property
    def goes_through(self) -> bool:
        return self.is_whole and self.oom_entry is None

    @property
    def peak_range(self) -> tuple[int, int] | None:
        """Lower and higher of `peak_kept` and `peak_anew`, in bytes; None if both are unknown."""
        return range_of((self.peak_kept, self.peak_anew))

    @property
    def least_at_end(self) -> int:
        """Lower bound of the reserved bytes at the end: bytes obtained minus bytes returned."""
        return self.obtained_small + self.obtained_large - self.returned_bytes

    def plain(self) -> dict[str, Any]:
        """Return the fields that differ from their default, as plain values for a file."""
        left_out = ("conf", "needed_bytes", "refused_below")
        return {
            part.name: value
            for part in fields(self)
            if part.name not in left_out and (value := getattr(self, part.name)) != part.default
        }

    @classmethod
    def from_plain(cls, conf: str, plain: dict[str, Any]) -> Trial:
        at_min = plain.get("at_min")
        at_min = None if at_min is None else tuple(at_min)
        calls = tuple(
            (str(call), int(size), int(n)) for call, size, n in plain.get("driver_calls", ())
        )
        return cls(**{**plain, "conf": conf, "at_min": at_min, "driver_calls": calls})


def trial_of(
    drive: Drive, conf: str, *, peak_device_bytes: int = 0, empties: bool = False
) -> Trial:
    """Return the trial of a replay that has ended, completely or early.

    empties: True if the program calls empty_cache, so that memory may be returned to the driver
        although no request was refused.
    """
    stats, ooms = drive.allocator.statistics(), drive.ooms
    last = drive.given_up_at if drive.given_up_at is not None else drive.stopped_at
    every, small, large = stats.all, stats.pools[True], stats.pools[False]
    maps = 0
    if drive.allocator.config.expandable_segments:
        maps = max(stats.num_device_alloc - every.segment.allocated, 0)
    return Trial(
        conf=conf,
        peak_reserved_bytes=every.reserved_bytes.peak,
        peak_allocated_bytes=every.allocated_bytes.peak,
        peak_device_bytes=peak_device_bytes,
        num_alloc_retries=stats.num_alloc_retries,
        num_device_alloc=stats.num_device_alloc,
        num_device_free=stats.num_device_free,
        num_sync_all_streams=stats.num_sync_all_streams,
        num_ooms=len(ooms),
        num_maps=maps,
        driver_calls=driver_calls_of(drive.allocator.device.calls),
        obtained_small=small.reserved_bytes.allocated,
        obtained_large=large.reserved_bytes.allocated,
        returned_bytes=every.reserved_bytes.freed,
        refused=bool(stats.num_alloc_retries or ooms or (stats.num_device_free and not empties)),
        oom_entry=ooms[0].entry if ooms else None,
        needed_bytes=ooms[0].needed_bytes if ooms else None,
        refused_below=drive.refused_below,
        dropped_at=drive.given_up_at,
        entries=(drive.n_entries if last is None else last + 1) - drive.skipped,
        skipped=drive.skipped,
    )


def trial_of_run(conf: str, device_run: DeviceRun) -> Trial:
    stats = device_run.stats
    trial = Trial(
        conf=conf,
        oom_entry=device_run.ooms[0].entry if device_run.ooms else None,
        peak_reserved_bytes=device_run.peak_reserved_bytes,
        peak_allocated_bytes=device_run.peak_allocated_bytes,
        peak_device_bytes=device_run.peak_device_bytes,
        needed_bytes=device_run.ooms[0].needed_bytes if device_run.ooms else None,
        refused_below=device_run.refused_below,
        num_alloc_retries=stats["num_alloc_retries"],
        num_device_alloc=stats.get("num_device_alloc", 0),
        num_device_free=stats.get("num_device_free", 0),
        num_ooms=len(device_run.ooms),
        driver_calls=device_run.driver_calls,
        entries=device_run.entries,
    )
    return _with(trial, device_run.peaks)


def with_peaks(
    trial: Trial, prepared: Prepared, setting: Setting, device_memory: int | None
) -> Trial:
    """Return `trial` with the peaks of replays that start with the recorded segments, and empty.

    `trial` started in one of these two ways; this function replays from the other start.  It
    returns `trial` unchanged if a request failed, or if only one start is possible.
    """
    if not trial.goes_through:
        return trial
    start = prepared.start_under(setting, device_memory)
    return _with(
        trial, peaks_by_start(prepared, setting, device_memory, start, trial.peak_reserved_bytes)
    )


def _with(trial: Trial, peaks: StartPeaks | None) -> Trial:
    if peaks is None:
        return trial
    return replace(trial, peak_kept=peaks.kept, peak_anew=peaks.anew)


Watch = Callable[[str], Progress | None]
"""Function that returns the progress function for a replay, or None for no progress.

It is called before each replay, with the option string (conf) of the replay.
"""


class Trials:
    """Cache of replays of one device of a recording under various settings.

    count: number of replays that were made.
    watch: function called before each replay.
    effect: function from a setting to a key; settings with equal keys are replayed only once.
    """

    def __init__(
        self, prepared: Prepared, watch: Watch | None = None, effect: Effect | None = None
    ) -> None:
        self.prepared = prepared
        self.count = 0
        self._watch = watch
        self._effect = effect
        self._known: dict[tuple[Hashable, int | None], Trial] = {}
        self._with_peaks: set[tuple[Hashable, int | None]] = set()

    def alone(self) -> Trials:
        """Return trials for a card without other processes; `self` if they held little memory."""
        if not self.prepared.others_memory:
            return self
        return Trials(replace(self.prepared, is_elsewhere=True), self._watch, self._effect)

    def under(
        self,
        setting: Setting,
        device_memory: int | None,
        *,
        to_first_oom: bool = False,
        standing: Standing | None = None,
    ) -> Trial:
        """Return the trial of `setting`, from the cache or by a replay.

        to_first_oom: end the replay at the first out-of-memory error.
        standing: end the replay as soon as it certainly cannot be better than these results.
        """
        key = self._key(setting, device_memory)
        trial = self._known.get(key)
        if trial is None or not _is_enough(trial, to_first_oom, standing):
            watch = _TrialWatch(to_first_oom=to_first_oom, standing=standing)
            trial, _ = self._replayed(setting, device_memory, watch)
        if not to_first_oom and key not in self._with_peaks:
            trial = with_peaks(trial, self.prepared, setting, device_memory)
            self._known[key] = trial
            self._with_peaks.add(key)
        return _as_of(setting, trial)

    def add(self, setting: Setting, device_run: DeviceRun) -> None:
        memory = device_run.device_memory
        key = self._key(setting, memory)
        self._known[key] = trial_of_run(setting.conf, device_run)
        self._with_peaks.add(key)

    def known(self, setting: Setting) -> list[tuple[int, Trial]]:
        wanted, _ = self._key(setting, None)
        return [
            (memory, _as_of(setting, trial))
            for (effect, memory), trial in self._known.items()
            if effect == wanted and memory is not None
        ]

    def timeline(
        self, setting: Setting, device_memory: int | None
    ) -> tuple[Trial, Timeline | None]:
        """Replay every step under `setting`; return the trial, and the memory after each step.

        The second value is None if the setting makes the replay impossible.
        """
        _, drive = self._replayed(setting, device_memory, _TrialWatch(), skips=False)
        found = None if drive is None else drive.timeline.build(drive.plan.steps.entry)
        return self.under(setting, device_memory), found

    def _key(self, setting: Setting, device_memory: int | None) -> tuple[Hashable, int | None]:
        return setting if self._effect is None else self._effect(setting), device_memory

    def _replayed(
        self,
        setting: Setting,
        device_memory: int | None,
        watch: _TrialWatch,
        *,
        skips: bool = True,
    ) -> tuple[Trial, Drive | None]:
        self.count += 1
        drive: Drive | None = None
        try:
            drive = self.prepared.drive(
                setting,
                device_memory,
                observers=(watch,),
                progress=None if self._watch is None else self._watch(setting.conf),
                skips=skips,
                folder=fold_allocated,
            )
        except (ConfigError, UndefinedBehaviorError, UpstreamError) as error:
            trial = Trial(conf=setting.conf, error=str(error))
        else:
            trial = trial_of(drive, setting.conf, peak_device_bytes=watch.peak_device_bytes)
        key = self._key(setting, device_memory)
        self._known[key] = trial
        self._with_peaks.discard(key)
        return trial, drive


def _as_of(setting: Setting, trial: Trial) -> Trial:
    return trial if trial.conf == setting.conf else replace(trial, conf=setting.conf)


def _is_enough(trial: Trial, to_first_oom: bool, standing: Standing | None) -> bool:
    if trial.dropped_at is None:
        return True
    fails = trial.oom_entry is not None and (to_first_oom or standing is not None)
    return fails or (standing is not None and trial.point.is_beyond(standing))


class _TrialWatch(Observer):
    def __init__(self, *, to_first_oom: bool = False, standing: Standing | None = None) -> None:
        self.peak_device_bytes = 0
        self._to_first_oom = to_first_oom
        self._standing = standing

    def began(self, allocator: CachingAllocator) -> None:
        self.peak_device_bytes = allocator.device.held

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        del entry
        self.peak_device_bytes = max(self.peak_device_bytes, allocator.device.held)
        if self._standing is not None:
            calls = allocator.calls
            so_far = Point(allocator.reserved_bytes, calls.of_driver, calls.retries)
            if so_far.is_beyond(self._standing):
                raise GiveUpError

    def out_of_memory(
        self, allocator: CachingAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None:
        del allocator, oom, blocks
        if self._to_first_oom or self._standing is not None:
            raise GiveUpError
