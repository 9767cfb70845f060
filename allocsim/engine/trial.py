"""Needs of one device of a recording under one setting, and replays that are made only once.

A trial contains only plain numbers, so it can be sent to other processes and stored in files.
If PyTorch refuses a setting or would not survive it, the trial has an `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from allocsim.core import Block, CachingAllocator
from allocsim.engine.drive import Drive
from allocsim.engine.fold import fold_allocated
from allocsim.engine.observers import GiveUpError, Observer, Progress
from allocsim.engine.prepared import Prepared
from allocsim.engine.result import DeviceRun, DriverCalls, SimulatedOom, Timeline, driver_calls_of
from allocsim.engine.setting import Setting
from allocsim.engine.start import StartPeaks
from allocsim.engine.two_starts import peaks_of
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError

__all__ = [
    "Effect", "Point", "Standing", "Trial", "Trials", "Watch", "trial_of", "trial_of_run",
    "with_peaks",
]  # fmt: skip

Watch = Callable[[str], Progress | None]
"""Called with each option string before its replay; the returned value observes that replay."""

Effect = Callable[[Setting], Hashable]
"""Function that returns equal values for settings of equal effect."""


class Point(NamedTuple):
    """Figures by which settings are compared; each only grows while a replay runs.

    memory: peak reserved bytes.
    calls: driver calls.
    retries: requests that first released all cached memory.
    """

    memory: int
    calls: int
    retries: int

    def is_beyond(self, standing: Standing) -> bool:
        """Return True if it can no longer be as good as `standing`."""
        return self.memory > standing.memory and self.retries >= standing.retries


class Standing(NamedTuple):
    """Figures that a setting must beat: those of a run that serves every request.

    A run that fails cannot beat them, nor one that reserves more with as many retries.
    memory: peak reserved bytes.
    retries: requests that first released all cached memory.
    """

    memory: int
    retries: int


@dataclass(frozen=True, slots=True)
class Trial:
    """Bytes and calls of one replay.

    conf: the option string.
    peak_device_bytes: the most that the device had to hold, the context and odd ends of pages
        included.
    obtained_small, obtained_large: bytes from the driver over the run, by pool.
    returned_bytes: those given back.
    num_maps: how many of num_device_alloc were mappings.
    driver_calls: see `DriverCalls`.
    refused: whether the driver or a limit may have refused a request: something was given back.
    unrefused_device: the smallest device on which the driver refuses nothing; None: not known.
    min_device_memory: the smallest device that answers every request, retries and all; None: not
        looked for.
    fails_at: the entry that fails on a device 2 MiB smaller than that.
    at_min: (retries, device allocs, device frees) on it.
    oom_entry: the first request without an answer, None if each was answered.
    needed_bytes: of the device that would have let it through as things stood then.
    refused_below: of the smallest on which any call that was refused until then would have been
        answered, so that on smaller ones it fails there as well.
    dropped_at: the entry at which the replay was given up, because the setting could no longer
        win; then the figures are those up to it.
    least_peak: bytes that the peak would surely have reached, where that was worked out.
    was_compared: whether it is the replay as recorded, which was compared with the recording.
    parts_at: the entry at which that left the recording, the number of entries where only the final
        segments differ; None: nowhere.
    entries: how many were replayed for all this.
    skipped: how many were passed over.
    peak_kept, peak_anew: of a recording that starts mid-run, the peak reserved by how the replay
        begins (`Start`); None where that was not asked, or no run comes to its end so.
    error: why there are no figures at all.
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
        """Peak of reserved memory (at least), driver calls, retries."""
        calls = self.num_device_alloc + self.num_device_free
        return Point(max(self.peak_reserved_bytes, self.least_peak), calls, self.num_alloc_retries)

    @property
    def is_whole(self) -> bool:
        """Whether the replay was neither given up nor impossible."""
        return self.dropped_at is None and self.error is None

    @property
    def goes_through(self) -> bool:
        """Whether every request of the recording was answered."""
        return self.is_whole and self.oom_entry is None

    @property
    def peak_range(self) -> tuple[int, int] | None:
        """The peak reserved at least and at most, where it depends on how the replay begins."""
        known = [peak for peak in (self.peak_kept, self.peak_anew) if peak is not None]
        return (min(known), max(known)) if known else None

    @property
    def least_at_end(self) -> int:
        """Bytes reserved at the end, at least: not counting what was there before the replay."""
        return self.obtained_small + self.obtained_large - self.returned_bytes

    def plain(self) -> dict[str, Any]:
        """The fields that are not at their default, for a file.

        Not the conf, which stands elsewhere, and not what only a search asks for.
        """
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        left_out = ("conf", "needed_bytes", "refused_below")
        return {
            part.name: values[part.name]
            for part in fields(self)
            if values[part.name] != part.default and part.name not in left_out
        }

    @classmethod
    def from_plain(cls, conf: str, plain: dict[str, Any]) -> Trial:
        """What `plain` wrote of a trial of `conf`.  Raises TypeError for anything else."""
        at_min = plain.get("at_min")
        at_min = None if at_min is None else tuple(at_min)
        calls = tuple(
            (str(call), int(size), int(n)) for call, size, n in plain.get("driver_calls", ())
        )
        return cls(**{**plain, "conf": conf, "at_min": at_min, "driver_calls": calls})


def trial_of(
    drive: Drive, conf: str, *, peak_device_bytes: int = 0, empties: bool = False
) -> Trial:
    """The trial that a drive has come to, at its end or where it was given up.

    peak_device_bytes: see `Trial`.  empties: the program itself empties the cache, and nothing
    else gives memory back unasked.
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
    """What a replay that has been run needed: peaks, calls and its first error."""
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
    """A trial of `setting`, with what it comes to where the replay begins in the other way."""
    if not trial.goes_through:
        return trial
    peak, start = trial.peak_reserved_bytes, prepared.start_under(setting, device_memory)
    return _with(trial, peaks_of(prepared, setting, device_memory, start, peak))


def _with(trial: Trial, peaks: StartPeaks | None) -> Trial:
    if peaks is None:
        return trial
    return replace(trial, peak_kept=peaks.kept, peak_anew=peaks.anew)


class Trials:
    """Replays of one device of a recording under settings, each made once and remembered.

    count: how many were made.
    watch: see `Watch`.  effect: see `Effect`; settings of equal effect are replayed once.
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
        """Return trials on a card that no other process uses; these if nobody else holds memory."""
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
        """The trial of `setting` on a device of `device_memory` bytes (None: without end).

        to_first_oom: one that fails may end at its first error, whose entry is all that it tells.
        standing: what answers every request; one that cannot beat it may end where that is
        certain, and tells no more.
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
        return replace(trial, conf=setting.conf)

    def note(self, setting: Setting, device_run: DeviceRun) -> None:
        """Remember a replay that has been run: it need not be made again."""
        memory = device_run.device_memory
        key = self._key(setting, memory)
        self._known[key] = trial_of_run(setting.conf, device_run)
        self._with_peaks.add(key)

    def known(self, setting: Setting) -> list[tuple[int, Trial]]:
        """The trials of a setting that were made on devices of so many bytes."""
        wanted = self._key(setting, None)[0]
        return [
            (memory, replace(trial, conf=setting.conf))
            for (effect, memory), trial in self._known.items()
            if effect == wanted and memory is not None
        ]

    def timeline(
        self, setting: Setting, device_memory: int | None
    ) -> tuple[Trial, Timeline | None]:
        """The trial with the memory after each step; None where there are no figures."""
        trial, drive = self._replayed(setting, device_memory, _TrialWatch(), skips=False)
        trial = self.under(setting, device_memory)
        if drive is None:
            return trial, None
        return trial, drive.timeline.build(drive.plan.steps.entry)

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


def _is_enough(trial: Trial, to_first_oom: bool, standing: Standing | None) -> bool:
    """Whether a trial tells all that is asked, though its replay may have been given up."""
    if trial.dropped_at is None:
        return True
    fails = trial.oom_entry is not None and (to_first_oom or standing is not None)
    return fails or (standing is not None and trial.point.is_beyond(standing))


class _TrialWatch(Observer):
    """The most that the device held, and what ends the replay (`Trials.under`)."""

    def __init__(self, *, to_first_oom: bool = False, standing: Standing | None = None) -> None:
        self.peak_device_bytes = 0
        self._to_first_oom = to_first_oom
        self._standing = standing

    def began(self, allocator: CachingAllocator) -> None:
        """See `Observer`."""
        self.peak_device_bytes = allocator.device.held

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        """See `Observer`."""
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
        """See `Observer`."""
        del allocator, oom, blocks
        if self._to_first_oom or self._standing is not None:
            raise GiveUpError
