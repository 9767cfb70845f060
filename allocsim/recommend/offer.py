"""A candidate setting with its replay on each device of the program.

One setting applies to all devices, so each number of an offer is that of the worst device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocsim.replaying import Point, Trial
from allocsim.simulation import Setting

_MANY_CALLS = 2
"""A setting can thrash only if it makes more than this multiple of the baseline's driver calls."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Setting with its replay on each device.

    trials: one replay for each device.
    is_fitted: True if a value of the setting is derived from the recorded sizes.
    churns: True if the replay spends more time on releasing memory and obtaining it again than on
        obtaining it once (`Cost.is_thrashing`).
    """

    setting: Setting
    trials: tuple[Trial, ...]
    is_fitted: bool = False
    churns: bool = False

    @property
    def goes_through(self) -> bool:
        return all(trial.goes_through for trial in self.trials)

    @property
    def retries(self) -> int:
        """Number of times that a request released all cached memory and tried again."""
        return max(trial.num_alloc_retries for trial in self.trials)

    @property
    def memory(self) -> int:
        return max(trial.peak_reserved_bytes for trial in self.trials)

    @property
    def memory_at_end(self) -> int:
        """Lower bound of the reserved bytes after the last entry, on the worst device."""
        return max(trial.least_at_end for trial in self.trials)

    @property
    def memory_range(self) -> tuple[int, int]:
        """Lowest and highest peak reserved bytes.

        They differ if a recording starts in the middle of the program, since the free memory at its
        start is unknown.
        """
        ends = [trial.peak_range or (trial.peak_reserved_bytes,) * 2 for trial in self.trials]
        return max(low for low, _ in ends), max(high for _, high in ends)

    @property
    def calls(self) -> int:
        """Number of driver calls that allocate or release memory."""
        return max(trial.num_device_alloc + trial.num_device_free for trial in self.trials)

    def thrashes(self, baseline: Offer) -> bool:
        """Return True if the replay obtains released memory again and again.

        It must also make many more driver calls than the baseline.
        """
        return self.churns and self.calls > _MANY_CALLS * baseline.calls


def dominates(better: Point, worse: Point) -> bool:
    """Return True if `better` is lower in memory, calls or retries, and not higher in any."""
    return (
        better.memory <= worse.memory
        and better.calls <= worse.calls
        and better.retries <= worse.retries
        and better != worse
    )


Bar = tuple[tuple[Point, bool], ...]
"""Points of finished replays, each with True if it wins against a setting with equal numbers."""


def is_hopeless(bar: Bar, so_far: Point) -> bool:
    """Return True if a replay need not continue, since a finished one is better in every number.

    bar: numbers of the finished replays, each with True if an equal result is also hopeless.
    so_far: numbers that the replay has reached, which can only grow.
    """
    return any(dominates(p, so_far) or (loses and p == so_far) for p, loses in bar)


def front(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the Pareto front of `points`, without duplicates, in order of memory."""
    distinct = sorted(set(points))
    return tuple(p for p in distinct if not any(dominates(other, p) for other in distinct))
