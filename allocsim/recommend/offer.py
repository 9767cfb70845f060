"""A candidate setting with its replays on each device of a recommendation.

Of several devices the worst figure counts, since one setting applies to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.replaying import Trial
from allocsim.simulation import Setting

__all__ = ["Offer"]

_MANY_CALLS = 2
"""A setting can be thrashing only if it exceeds the baseline's driver calls by this factor."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Setting with its replay on each device.

    is_fitted: see `is_fitted`.
    churns: True if most of its driver calls release and reallocate memory (`Cost.is_thrashing`).
    """

    setting: Setting
    trials: tuple[Trial, ...]
    is_fitted: bool = False
    churns: bool = False

    @property
    def goes_through(self) -> bool:
        """True if every request of every recording was served."""
        return all(trial.goes_through for trial in self.trials)

    @property
    def retries(self) -> int:
        """Number of requests that first released all cached memory."""
        return max(trial.num_alloc_retries for trial in self.trials)

    @property
    def memory(self) -> int:
        """Peak reserved bytes."""
        return max(trial.peak_reserved_bytes for trial in self.trials)

    @property
    def memory_at_end(self) -> int:
        """Lower bound of the reserved bytes at the end."""
        return max(trial.least_at_end for trial in self.trials)

    @property
    def memory_range(self) -> tuple[int, int]:
        """Range of peak reserved bytes for a recording that starts mid-run (`StartPeaks`)."""
        ends = [trial.peak_range or (trial.peak_reserved_bytes,) * 2 for trial in self.trials]
        return max(low for low, _ in ends), max(high for _, high in ends)

    @property
    def calls(self) -> int:
        """Number of driver calls that allocate or release memory."""
        return max(trial.num_device_alloc + trial.num_device_free for trial in self.trials)

    def thrashes(self, baseline: Offer) -> bool:
        """Return True if it spends much more time in the driver than the baseline."""
        return self.churns and self.calls > _MANY_CALLS * baseline.calls
