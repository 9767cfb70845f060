"""A setting under which a recording goes through, found by replaying it under a few.

Rule: nothing is recommended that a replay of the same recording, on the same device memory and
release, has not proved.  Options that limit the process (a memory fraction, a reserve) and
those of pinned memory stay as recorded; only how memory is cut into segments and blocks varies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from allocsim.analysis import shortages_of
from allocsim.core import AllocatorConfig, Release, find_release, parse_conf
from allocsim.core.config import NO_DIVISIONS
from allocsim.core.constants import LARGE_BUFFER, UNLIMITED
from allocsim.engine import DeviceRun, Progress, Run
from allocsim.engine import replay as replay_under
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamAssertionError
from allocsim.trace import Recording

__all__ = [
    "Cure",
    "Trial",
    "Watch",
    "find_cure",
    "is_worth_a_search",
    "settings_to_try",
    "trial_of",
]

_OPTIONS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "large_segment_size_mb:512",
    "roundup_power2_divisions:2",
    "roundup_power2_divisions:8",
)

_WASTE_SHARE = 8
"""Idle memory at the peak is worth a search from this part of the peak (1/8)."""

_LEAST_SAVING = 20
"""Where nothing failed, a setting must save this part of the peak (1/20) to be named."""

Watch = Callable[[str], Progress | None]
"""Called with each setting before its replay; what it returns watches that replay."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting and what its replay needed, in bytes and calls.

    oom_entry: where it ran out of memory first, None if it went through.
    """

    conf: str
    oom_entry: int | None
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    num_alloc_retries: int
    num_device_alloc: int
    num_device_free: int

    @property
    def goes_through(self) -> bool:
        """Whether every request of the recording was answered."""
        return self.oom_entry is None


@dataclass(frozen=True, slots=True)
class Cure:
    """The outcome of a search on one device.

    best: the trial to paste, None if none helps.  entries_left: entries that the recording
    has after the error; None if nothing failed, or the failure is not in the recording.
    """

    device: int
    device_memory: int | None
    baseline: Trial
    trials: tuple[Trial, ...]
    best: Trial | None
    entries_left: int | None


def is_worth_a_search(device_run: DeviceRun) -> bool:
    """Whether it ran out of memory that a setting could find, or an eighth of its peak was idle."""
    peak = device_run.peak
    shortages = shortages_of(device_run)
    if any(shortage.cause == "impossible" for shortage in shortages):
        return False
    return bool(shortages) or peak.idle * _WASTE_SHARE > peak.reserved


def find_cure(
    recording: Recording, run: Run, device_run: DeviceRun, watch: Watch | None = None
) -> Cure:
    """Replay one device of `recording` under each of `settings_to_try` and pick the best.

    run: the recording's replay, whose release and device memory are kept.  Among settings
    that go through, the one with the fewest retries, then the lowest peak of reserved memory.
    """
    memory = device_run.device_memory
    trials = []
    for conf in settings_to_try(run.conf, find_release(run.torch_version)):
        progress = watch(conf) if watch is not None else None
        try:
            other = replay_under(
                recording,
                conf,
                device_memory=memory,
                torch_version=run.torch_version,
                device=device_run.device,
                progress=progress,
            )
        except (UndefinedBehaviorError, UpstreamAssertionError):
            continue  # PyTorch would not survive it either
        trials.append(trial_of(conf, other.devices[0]))
    baseline = trial_of(run.conf, device_run)
    last = device_run.ooms[-1] if device_run.ooms else None
    return Cure(
        device=device_run.device,
        device_memory=memory,
        baseline=baseline,
        trials=tuple(trials),
        best=_best(baseline, trials),
        entries_left=(
            device_run.entries - 1 - last.entry if last is not None and last.is_recorded else None
        ),
    )


def settings_to_try(conf: str, release: Release) -> tuple[str, ...]:
    """Option strings that the release has and that mean something else than `conf`."""
    recorded = parse_conf(conf, release)
    kept = str(_plain(recorded))
    confs = []
    for option in _OPTIONS:
        candidate = ",".join(part for part in (option, kept) if part)
        try:
            parsed = parse_conf(candidate, release)
        except ConfigError:
            continue
        if str(parsed) != str(recorded):
            confs.append(candidate)
    return tuple(confs)


def _plain(config: AllocatorConfig) -> AllocatorConfig:
    """`config` with every option at its default that decides how memory is cut."""
    return replace(
        config,
        max_split_size=UNLIMITED,
        max_non_split_rounding=LARGE_BUFFER,
        large_segment_size=LARGE_BUFFER,
        garbage_collection_threshold=0.0,
        roundup_power2_divisions=NO_DIVISIONS,
        expandable_segments=False,
    )


def trial_of(conf: str, device_run: DeviceRun) -> Trial:
    """What the replay of one device under `conf` needed."""
    stats = device_run.stats
    return Trial(
        conf=conf,
        oom_entry=device_run.ooms[0].entry if device_run.ooms else None,
        peak_reserved_bytes=device_run.peak_reserved_bytes,
        peak_allocated_bytes=device_run.peak_allocated_bytes,
        num_alloc_retries=stats["num_alloc_retries"],
        num_device_alloc=stats.get("num_device_alloc", 0),
        num_device_free=stats.get("num_device_free", 0),
    )


def _best(baseline: Trial, trials: list[Trial]) -> Trial | None:
    good = [trial for trial in trials if trial.goes_through]
    best = min(
        good, key=lambda trial: (trial.num_alloc_retries, trial.peak_reserved_bytes), default=None
    )
    if best is None or not baseline.goes_through:
        return best
    saved = baseline.peak_reserved_bytes - best.peak_reserved_bytes
    return best if saved * _LEAST_SAVING >= baseline.peak_reserved_bytes else None
