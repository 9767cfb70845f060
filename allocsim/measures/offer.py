"""A setting with what came of it: its replay on each device that a recommendation is for.

Rule: of several devices the worst figure counts, since one setting is pasted for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.engine import Setting, Trial

__all__ = ["Offer"]

_MANY_CALLS = 2
"""A setting thrashes only if it makes more than so many times the driver calls of the run as is."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A setting with its replay on each device that it is for, the worst of each figure.

    is_fitted: see `is_fitted`.  churns: whether its driver calls are mostly memory given back and
    taken again, by the cost model (`Cost.is_thrashing`).
    """

    setting: Setting
    trials: tuple[Trial, ...]
    is_fitted: bool = False
    churns: bool = False

    @property
    def goes_through(self) -> bool:
        """Whether every request of every recording was answered."""
        return all(trial.goes_through for trial in self.trials)

    @property
    def retries(self) -> int:
        """Requests that emptied the cache first."""
        return max(trial.num_alloc_retries for trial in self.trials)

    @property
    def memory(self) -> int:
        """The peak of reserved memory in bytes."""
        return max(trial.peak_reserved_bytes for trial in self.trials)

    @property
    def memory_at_end(self) -> int:
        """Bytes reserved at the end, at least."""
        return max(trial.least_at_end for trial in self.trials)

    @property
    def memory_range(self) -> tuple[int, int]:
        """The peak at least and at most, of a recording that starts mid-run (`StartPeaks`)."""
        ends = [trial.peak_range or (trial.peak_reserved_bytes,) * 2 for trial in self.trials]
        return max(low for low, _ in ends), max(high for _, high in ends)

    @property
    def calls(self) -> int:
        """Calls that took memory from the driver or gave it back."""
        return max(trial.num_device_alloc + trial.num_device_free for trial in self.trials)

    def thrashes(self, baseline: Offer) -> bool:
        """Whether it costs much time in the driver that the run as it is does not."""
        return self.churns and self.calls > _MANY_CALLS * baseline.calls
