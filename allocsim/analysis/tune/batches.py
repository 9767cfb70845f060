"""Replay the settings of a search for the best setting, in batches.

A replay ends early if a setting of an earlier batch is better in memory, driver calls and retries.
Settings of the same batch do not affect each other's replays, so the result is the same for any
number of worker processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field, replace
from itertools import chain

from allocsim.analysis.tune.lower_bound import Bounds
from allocsim.analysis.tune.results import Results, SettingRow
from allocsim.analysis.tune.target import Target
from allocsim.analysis.tune.worker import Job, Tricks, bounds_for, parting_for, run_job
from allocsim.core import LARGE_BUFFER, Release
from allocsim.errors import ConfigError
from allocsim.recommend import Costs, cost_of, front, is_hopeless
from allocsim.replaying import Trial, effect_of, is_recorded_device
from allocsim.simulation import Setting
from allocsim.workers import Crew, WorkerDiedError

_FIRST_CHUNK = 4

SearchProgress = Callable[[int, int], None]
"""Callback for the number of finished settings and the number of all settings."""


@dataclass(slots=True)
class Search:
    """Search for the best setting, with its parameters, worker processes and results.

    parts: all devices of all recordings; the search finds one setting for all.
    device_memory: bytes of the smallest of these devices; None if no device memory is known.
    knows_device: False if device memory was only estimated from refused requests.
    costs: times of driver calls.
    tricks: shortcuts of the search.
    by_device: True to prefer the setting with the smallest sufficient device, and not the lowest
        peak.
    crew: runner of the replays, in this process or in worker processes.
    results: results file; None without one.
    rows: dictionary from each finished setting to its results.
    duplicates: (setting that was not replayed, replayed setting with the same effect).
    known: number of replays whose results were read from the results file.
    """

    parts: tuple[Target, ...]
    release: Release
    device_memory: int | None
    knows_device: bool
    costs: Costs
    tricks: Tricks
    by_device: bool
    crew: Crew
    progress: SearchProgress | None = None
    results: Results | None = None
    rows: dict[Setting, SettingRow] = field(default_factory=dict)
    duplicates: list[tuple[Setting, Setting]] = field(default_factory=list)
    known: int = 0
    _effects: dict[object, Setting] = field(default_factory=dict)
    _done: int = 0

    def replay_fully(self, settings: Sequence[Setting], baseline: Setting | None = None) -> None:
        """Replay each setting to the end, and store its results in `rows`.

        The results include the smallest device on which the driver refuses no call.
        baseline: recorded setting, if it is among `settings`; its replay is compared with the
            recording.
        """
        fresh = self._distinct(settings)
        self._run(fresh, len(fresh), is_whole=True, baseline=baseline)
        for setting in settings:
            if setting not in self.rows:
                like = self._effects[self._effect(setting)]
                self.rows[setting] = self._row(setting, self.rows[like].parts, like)
        if baseline is not None:
            self.rows[baseline] = replace(self.rows[baseline], same_as=None, is_baseline=True)

    def replay_to_end(self, settings: Sequence[Setting]) -> None:
        fresh = self._distinct(settings)
        self._run(fresh, len(fresh) + self._done, is_whole=False, drops=False)

    def replay_while_hopeful(self, settings: Sequence[Setting]) -> None:
        """Replay each setting, and store its results.

        A replay ends early if a finished setting is better in memory, driver calls and retries.
        """
        fresh = self._distinct(settings)
        if not self.by_device:
            fresh.sort(key=self._order_of_trials)
        total = len(fresh) + self._done
        for batch in _batches(fresh):
            self._run(batch, total, is_whole=False)

    def start_bounds(self) -> Callable[[], Bounds]:
        """Start to compute, in the background, the memory that the recorded requests need.

        Returns a function that waits for this memory and returns the maximum over all devices.
        """
        each = [self.crew.beside(bounds_for, job) for job in self._of_parts()]

        def known() -> Bounds:
            found = [wait() for wait in each]
            return Bounds(
                peak_live_bytes=max(bounds.peak_live_bytes for bounds in found),
                packed_bytes=max(bounds.packed_bytes for bounds in found),
            )

        return known

    def start_partings(self) -> Callable[[], None]:
        """Start to compare the baseline of each device with its recording, in the background.

        The baseline is the replay under the recorded settings.  Returns a function that waits for
        the comparisons and stores each in `Prepared.proofs` of its device.
        """
        # On the recorded device, the replay of the recorded setting makes this comparison.
        under_way = [
            (part.prepared, self.crew.beside(parting_for, job))
            for part, job in zip(self.parts, self._of_parts(), strict=True)
            if part.prepared.is_own_release
            and not is_recorded_device(part.prepared, job.device_memory)
        ]

        def known() -> None:
            for prepared, found in under_way:
                prepared.proofs[:] = [found()]

        return known

    def _of_parts(self) -> list[Job]:
        baseline = self.parts[0].prepared.recorded
        return self._jobs(baseline, (), None, is_whole=True, as_recorded=True)

    def _order_of_trials(self, setting: Setting) -> int:
        # Settings with a lower key are tried earlier, since they usually need the least memory.
        try:
            config = setting.config(self.release)
        except ConfigError:
            return 3
        is_long = config.large_segment_size != LARGE_BUFFER
        if config.rounds_to_power2 or not (config.expandable_segments or is_long):
            return 3
        return 2 - config.expandable_segments - (config.expandable_segments and is_long)

    def find_unrefused_devices(self, settings: Sequence[Setting]) -> None:
        if not self.by_device:
            self._run(settings, len(settings) + self._done, is_whole=True)

    def _effect(self, setting: Setting) -> object:
        if not self.tricks.equivalent:
            return setting
        return tuple(
            effect_of(
                part.prepared.in_force(setting),
                self.release,
                (part.sizes.asked,),
                part.prepared.plan.limit is not None,
            )
            for part in self.parts
        )

    def _distinct(self, settings: Sequence[Setting]) -> list[Setting]:
        fresh = []
        for setting in settings:
            try:
                effect = self._effect(setting)
            except ConfigError:  # `rows` has the error of a refused setting
                effect = setting
            like = self._effects.setdefault(effect, setting)
            if like is setting:
                fresh.append(setting)
            elif like != setting:
                self.duplicates.append((setting, like))
        return fresh

    def _best_finished(self) -> tuple[SettingRow, ...]:
        # A replay ends early if one of the returned settings is better.
        if not self.tricks.drop or self.by_device:
            return ()
        good = [row for row in self.rows.values() if row.survives and not row.cost.is_thrashing]
        points = {row.point: row for row in sorted(good, key=SettingRow.rank, reverse=True)}
        return tuple(points[point] for point in front(points))

    def _within(self) -> int | None:
        if not self.tricks.drop or not self.by_device:
            return None
        points = [row.device_point for row in self.rows.values() if row.survives]
        return min((point.memory for point in points if point is not None), default=None)

    def _run(
        self,
        settings: Sequence[Setting],
        total: int,
        *,
        is_whole: bool,
        drops: bool = True,
        baseline: Setting | None = None,
    ) -> None:
        jobs: list[Job] = []
        found: dict[str, Trial] = {}
        bar, within = (
            (self._best_finished(), self._within()) if drops and not is_whole else ((), None)
        )
        jobs_of = {
            s: self._jobs(s, bar, within, is_whole=is_whole, as_recorded=s == baseline)
            for s in settings
        }
        left = {setting: len(own) for setting, own in jobs_of.items()}

        def done(job: Job, trial: Trial) -> None:
            found[job.key] = trial
            left[job.setting] -= 1
            if left[job.setting] == 0:
                self._done += 1
                if self.progress is not None:
                    self.progress(self._done, max(total, self._done))

        for job in chain.from_iterable(jobs_of.values()):
            known = self._known(job)
            if known is None:
                jobs.append(job)
            else:
                self.known += 1
                done(job, known)

        def store(job: Job, trial: Trial) -> None:
            if self.results is not None:
                self.results.add(job.key, trial)
            done(job, trial)

        self.crew.run_all(run_job, jobs, store, lost_trial)
        for setting, own in jobs_of.items():
            self.rows[setting] = self._row(setting, [found[job.key] for job in own])

    def _jobs(
        self,
        setting: Setting,
        bar: tuple[SettingRow, ...],
        within: int | None,
        *,
        is_whole: bool,
        as_recorded: bool,
    ) -> list[Job]:
        how = "whole" if is_whole else f"within {within}" if within else "grid"
        how = "as recorded" if as_recorded else how
        simplicity = setting.simplicity
        row = self.rows.get(setting)
        before = [None] * len(self.parts) if row is None else row.parts
        fraction = "" if setting.call_fraction is None else f"{setting.call_fraction:g}"
        return [
            Job(
                # Results files of earlier searches contain these keys.
                key=f"{number}|{part.device}|{how}|{fraction}|{setting.conf}",
                path=part.path,
                device=part.device,
                torch_version=self.release.version,
                setting=setting,
                device_memory=part.memory,
                bar=tuple((row.point, row.setting.simplicity < simplicity) for row in bar),
                finds=self.by_device,
                within=within,
                confirms=is_whole,
                tricks=self.tricks,
                hints=part.prepared.hints,
                known=known if known is not None and known.is_whole else None,
                as_recorded=as_recorded,
                assumed_memory=part.assumed_memory,
            )
            for number, (part, known) in enumerate(zip(self.parts, before, strict=True))
        ]

    def _known(self, job: Job) -> Trial | None:
        trial = None if self.results is None else self.results.known.get(job.key)
        if trial is None or trial.error is not None:
            return None
        if trial.dropped_at is None or job.within is not None:
            return trial
        return trial if is_hopeless(job.bar, trial.point) else None

    def _row(
        self, setting: Setting, parts: Sequence[Trial], same_as: Setting | None = None
    ) -> SettingRow:
        every = [cost_of(part, self.costs) for part in parts]
        cost = max(every, key=lambda cost: (cost.is_thrashing, cost.total))
        return SettingRow(setting, setting.fraction(self.release), tuple(parts), cost, same_as)


def lost_trial(job: Job, error: BaseException) -> Trial:
    why = f"{type(error).__name__}: {error}"
    if isinstance(error, BrokenExecutor):
        why = f"the executor broke: {error}"
    if isinstance(error, WorkerDiedError):
        why = "its worker process died twice"
    return Trial(conf=job.setting.conf, error=why)


def _batches(settings: Sequence[Setting]) -> Iterator[Sequence[Setting]]:
    # The first batches are small, since replays of later batches can end early.  Later batches are
    # large, to keep all workers busy.
    start, length = 0, _FIRST_CHUNK
    while start < len(settings):
        yield settings[start : start + length]
        start, length = start + length, 2 * length
