"""Cache of the replays of one device of a recording under various settings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from allocsim.core import Block, CachingAllocator
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.replaying.equivalence import Effect
from allocsim.replaying.prepared import Prepared
from allocsim.replaying.trial import Point, Standing, Trial, trial_of, trial_of_run, with_peaks
from allocsim.simulation import (
    DeviceRun,
    Drive,
    GiveUpError,
    Observer,
    Progress,
    Setting,
    SimulatedOom,
    Timeline,
    fold_allocated,
)

Watch = Callable[[str], Progress | None]
"""Function called with each conf before its replay; it returns the progress function, or None."""


class Trials:
    """Cache of replays of one device of a recording under various settings.

    count: number of replays that were made.
    watch: function called before each replay.
    effect: function that groups settings; settings with equal values are replayed once.
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
        """Return trials on a card without other processes; `self` if the recorded card has none."""
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

        device_memory: bytes; None for an unlimited device.
        to_first_oom: end the replay at the first out-of-memory error; the numbers are for the
            entries before it.
        standing: end the replay when it certainly cannot be better than these numbers.
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

    def note(self, setting: Setting, device_run: DeviceRun) -> None:
        """Add a finished replay to the cache."""
        memory = device_run.device_memory
        key = self._key(setting, memory)
        self._known[key] = trial_of_run(setting.conf, device_run)
        self._with_peaks.add(key)

    def known(self, setting: Setting) -> list[tuple[int, Trial]]:
        """Return cached (device memory in bytes, trial) pairs of a setting on limited devices."""
        wanted = self._key(setting, None)[0]
        return [
            (memory, _as_of(setting, trial))
            for (effect, memory), trial in self._known.items()
            if effect == wanted and memory is not None
        ]

    def timeline(
        self, setting: Setting, device_memory: int | None
    ) -> tuple[Trial, Timeline | None]:
        """Replay, and return the trial and its timeline; None if the replay is impossible."""
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


def _as_of(setting: Setting, trial: Trial) -> Trial:
    """Return a trial of an equivalent setting as that of `setting`."""
    return trial if trial.conf == setting.conf else replace(trial, conf=setting.conf)


def _is_enough(trial: Trial, to_first_oom: bool, standing: Standing | None) -> bool:
    """Return True if a trial, even if it ended early, is sufficient for `Trials.under`."""
    if trial.dropped_at is None:
        return True
    fails = trial.oom_entry is not None and (to_first_oom or standing is not None)
    return fails or (standing is not None and trial.point.is_beyond(standing))


class _TrialWatch(Observer):
    """Observer that measures the device's peak and ends the replay early (`Trials.under`)."""

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
