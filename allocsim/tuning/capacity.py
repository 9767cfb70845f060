"""The smallest device, and the smallest memory fraction, on which a recording goes through.

Rule: a bound is named with two replays that prove it: one of that size, which answers every
request, and one of the next smaller size, which does not.  Sizes are whole pages of 2 MiB,
fractions whole hundredths.  Between the two ends of the search more memory is taken never to
hurt, which the caching allocator does not promise; so a far smaller size that happens to do may
be missed, and the bound itself is never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from allocsim.core.constants import PAGE
from allocsim.engine import Observer
from allocsim.engine import replay as replay_under
from allocsim.engine.replay import UNLIMITED_DEVICE
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamAssertionError
from allocsim.trace import Recording
from allocsim.tuning.cure import Trial, Watch, trial_of
from allocsim.units import round_up

__all__ = ["Capacity", "smallest_device", "smallest_fraction"]

_FRACTION = re.compile(r"per_process_memory_fraction\s*:\s*([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Capacity:
    """The least memory for one setting.

    device_memory: bytes of the smallest device.  trial: its replay.  fails_at: the entry that
    fails on a device 2 MiB smaller; None if nothing smaller can hold what the recording holds.
    unlimited: the replay on a device without end, whose peak is what the setting would like.
    """

    device_memory: int
    trial: Trial
    fails_at: int | None
    unlimited: Trial
    replays: int


class _Replays:
    """Replays of one device of a recording under one setting, on devices of any size."""

    def __init__(
        self, recording: Recording, conf: str, version: str, device: int, watch: Watch | None
    ) -> None:
        self.recording, self.conf, self.version = recording, conf, version
        self.device, self.watch = device, watch
        self.count = 0

    def trial(self, memory: int, observer: Observer | None = None) -> Trial | None:
        """None: the setting is refused, or no device so small can hold the recording's start."""
        self.count += 1
        try:
            run = replay_under(
                self.recording,
                self.conf,
                device_memory=memory,
                torch_version=self.version,
                device=self.device,
                progress=self.watch(self.conf) if self.watch is not None else None,
                observer=observer,
            )
        except (ConfigError, UndefinedBehaviorError, UpstreamAssertionError):
            return None
        return trial_of(self.conf, run.devices[0])


def smallest_device(
    recording: Recording,
    conf: str,
    *,
    torch_version: str,
    device: int,
    watch: Watch | None = None,
) -> Capacity | None:
    """The smallest device on which one device of `recording` goes through under `conf`.

    None if PyTorch refuses the setting or would not survive it, on a device of any size.
    """
    replays = _Replays(recording, conf, torch_version, device, watch)
    unlimited = replays.trial(UNLIMITED_DEVICE)
    if unlimited is None or not unlimited.goes_through:
        return None
    high = round_up(max(unlimited.peak_reserved_bytes, PAGE), PAGE) // PAGE
    low = max(unlimited.peak_allocated_bytes // PAGE, 1) - 1
    best, failed = _bisect(lambda pages: replays.trial(pages * PAGE), low, high)
    if best is None:  # what the segments hold beyond what is counted, as odd segment sizes do
        best, failed = _bisect(lambda pages: replays.trial(pages * PAGE), high, 2 * high)
    if best is None:
        return None
    pages, trial = best
    return Capacity(pages * PAGE, trial, failed, unlimited, replays.count)


def smallest_fraction(
    recording: Recording,
    conf: str,
    *,
    device_memory: int,
    torch_version: str,
    device: int,
    watch: Watch | None = None,
) -> tuple[str, Trial] | None:
    """`conf` with the least per_process_memory_fraction that goes through, and its replay.

    None if `conf` sets no fraction, or not even the whole device would do.
    """
    found = _FRACTION.search(conf)
    if found is None:
        return None

    def with_fraction(hundredths: int) -> str:
        return f"{conf[: found.start(1)]}{hundredths / 100:.2f}{conf[found.end(1) :]}"

    def trial(hundredths: int) -> Trial | None:
        replays = _Replays(recording, with_fraction(hundredths), torch_version, device, watch)
        return replays.trial(device_memory)

    best, _ = _bisect(trial, int(float(found[1]) * 100), 100)
    return None if best is None else (with_fraction(best[0]), best[1])


def _bisect(
    trial: Callable[[int], Trial | None], low: int, high: int
) -> tuple[tuple[int, Trial] | None, int | None]:
    """The least step in (low, high] that goes through, and the entry that fails one below it.

    None, None if `high` does not go through.
    """
    at_high = trial(high)
    if at_high is None or not at_high.goes_through:
        return None, None
    best, failed = (high, at_high), None
    while high - low > 1:
        middle = (low + high) // 2
        tried = trial(middle)
        if tried is not None and tried.goes_through:
            high, best = middle, (middle, tried)
        else:
            low, failed = middle, None if tried is None else tried.oom_entry
    if failed is None and low > 0:
        below = trial(low)
        if below is not None and below.goes_through:
            return (low, below), None
        failed = None if below is None else below.oom_entry
    return best, failed
