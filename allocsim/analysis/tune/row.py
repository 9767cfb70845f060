"""Results of one setting on every device of every recording of a search.

Each number is the worst over all devices, so it may combine the memory of one rank with the driver
calls of another rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.core import Release
from allocsim.recommend import Cost, Costs, cost_of
from allocsim.replaying import Point, Trial
from allocsim.simulation import Setting


@dataclass(frozen=True, slots=True)
class SettingRow:
    """Results of one setting.

    memory_fraction: memory fraction in force; None if none is set.
    parts: trial on each device of each recording.
    cost: highest estimated time of driver calls on any device.
    same_as: equivalent setting that was replayed instead; None if `setting` itself was replayed.
    is_baseline: True for the recorded settings.
    """

    setting: Setting
    memory_fraction: float | None
    parts: tuple[Trial, ...]
    cost: Cost
    same_as: Setting | None = None
    is_baseline: bool = False

    @property
    def conf(self) -> str:
        return self.setting.conf

    @property
    def is_as_recorded(self) -> bool:
        """True if every trial was a replay as recorded, compared with the recording."""
        return all(part.was_compared for part in self.parts)

    @property
    def error(self) -> str | None:
        """Reason why the setting could not be replayed; None if it was replayed."""
        return next((part.error for part in self.parts if part.error is not None), None)

    @property
    def dropped_at(self) -> int | None:
        """Entry at which the replay was ended early, where all numbers end too; else None."""
        return next((p.dropped_at for p in self.parts if p.dropped_at is not None), None)

    @property
    def is_whole(self) -> bool:
        """True if every device was replayed to the end, or to an out-of-memory error."""
        return all(part.is_whole for part in self.parts)

    @property
    def survives(self) -> bool:
        """True if every request of every recording was served."""
        return self.is_whole and self.num_ooms == 0

    @property
    def peak_reserved_bytes(self) -> int:
        """Peak reserved bytes, as torch.cuda.max_memory_reserved()."""
        return max(part.peak_reserved_bytes for part in self.parts)

    @property
    def peak_range(self) -> tuple[int, int] | None:
        """Lowest and highest peak reserved bytes that the state at the first entry allows.

        None if this state has no effect on the peak.
        """
        if all(part.peak_range is None for part in self.parts):
            return None
        ends = [part.peak_range or (part.peak_reserved_bytes,) * 2 for part in self.parts]
        return max(low for low, _ in ends), max(high for _, high in ends)

    @property
    def peak_allocated_bytes(self) -> int:
        return max(part.peak_allocated_bytes for part in self.parts)

    @property
    def min_device_memory_bytes(self) -> int | None:
        """Memory in bytes of the smallest device proved to suffice; None if not searched."""
        return _highest([part.min_device_memory for part in self.parts]) or self.unrefused_device

    @property
    def unrefused_device(self) -> int | None:
        """Memory in bytes of the smallest device on which no driver call fails; None if unknown."""
        return _highest([part.unrefused_device for part in self.parts])

    @property
    def num_alloc_retries(self) -> int:
        """Number of requests that first released all cached memory."""
        return max(part.num_alloc_retries for part in self.parts)

    @property
    def num_device_alloc(self) -> int:
        """Number of driver calls that obtained memory."""
        return max(part.num_device_alloc for part in self.parts)

    @property
    def num_device_free(self) -> int:
        """Number of driver calls that released memory."""
        return max(part.num_device_free for part in self.parts)

    @property
    def fails_at(self) -> int | None:
        """First entry at which any device runs out of memory; None if all requests succeed."""
        return min((p.oom_entry for p in self.parts if p.oom_entry is not None), default=None)

    @property
    def num_ooms(self) -> int:
        """Number of out-of-memory errors."""
        return max(part.num_ooms for part in self.parts)

    @property
    def point(self) -> Point:
        """Peak reserved bytes, driver calls and retries, as a point of the Pareto front."""
        calls = self.num_device_alloc + self.num_device_free
        return Point(self.peak_reserved_bytes, calls, self.num_alloc_retries)

    @property
    def device_point(self) -> Point | None:
        """Smallest device, with driver calls and retries of a replay on it; None if unknown."""
        at = [part.at_min for part in self.parts if part.at_min is not None]
        memory = _highest([part.min_device_memory for part in self.parts])
        if memory is None or len(at) < len(self.parts):
            return None
        calls = max(allocs + frees for _, allocs, frees in at)
        return Point(memory, calls, max(retries for retries, _, _ in at))

    def rank(self, *, by_device: bool = False) -> tuple[object, ...]:
        """Return the key that sorts rows, best first: errors, thrashing, retries, then memory.

        A setting thrashes if it keeps calling the driver instead of reusing memory.

        by_device: compare the smallest device instead of the peak.
        """
        point = self.point
        if by_device:
            found = self.device_point
            memory = (found is None, found or point)
            return (not self.survives, *memory, *self.setting.simplicity)
        return (
            not self.survives,
            not self.is_whole,
            -self.fails_at if self.fails_at is not None else 0,
            self.cost.is_thrashing,
            point.retries,
            point.memory,
            point.calls,
            *self.setting.simplicity,
        )


def _highest(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def row_of(
    setting: Setting,
    release: Release,
    parts: Sequence[Trial],
    costs: Costs,
    same_as: Setting | None = None,
) -> SettingRow:
    """Return the results of a setting from its trial on each device."""
    every = [cost_of(part, costs) for part in parts]
    cost = max(every, key=lambda cost: (cost.is_thrashing, cost.total))
    return SettingRow(setting, setting.fraction(release), tuple(parts), cost, same_as)
