"""One setting in a table: its trials on every recording, the worst of each figure.

Rule: a figure of a row is the worst over its recordings, each taken by itself; so a row may join
the memory of one rank with the driver calls of another, and says so in `parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.core import Release
from allocsim.engine import Point, Setting, Trial
from allocsim.measures import Cost, Costs, cost_of

__all__ = ["Row", "row_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """A setting and what it came to.

    memory_fraction: in force, None without one.
    parts: the trial on each device of each recording.
    cost: the highest of any recording, by the model.
    same_as: the setting with the same effect that was replayed in its place.
    is_baseline: under the recorded settings.
    """

    setting: Setting
    memory_fraction: float | None
    parts: tuple[Trial, ...]
    cost: Cost
    same_as: Setting | None = None
    is_baseline: bool = False

    @property
    def conf(self) -> str:
        """The option string."""
        return self.setting.conf

    @property
    def is_as_recorded(self) -> bool:
        """Whether every part is the very run that was recorded, as far as it can be told."""
        return all(part.was_compared for part in self.parts)

    @property
    def error(self) -> str | None:
        """Why there are no figures."""
        return next((part.error for part in self.parts if part.error is not None), None)

    @property
    def dropped_at(self) -> int | None:
        """The entry at which it could no longer win; its figures are those up to there."""
        return next((p.dropped_at for p in self.parts if p.dropped_at is not None), None)

    @property
    def is_whole(self) -> bool:
        """Whether every part was replayed to its end, or to its own out-of-memory error."""
        return all(part.is_whole for part in self.parts)

    @property
    def survives(self) -> bool:
        """Whether every request of every recording was answered."""
        return self.is_whole and self.num_ooms == 0

    @property
    def peak_reserved_bytes(self) -> int:
        """torch.cuda.max_memory_reserved()."""
        return max(part.peak_reserved_bytes for part in self.parts)

    @property
    def peak_range(self) -> tuple[int, int] | None:
        """That at least and at most; None unless it depends on how a replay begins (`Start`)."""
        if all(part.peak_range is None for part in self.parts):
            return None
        ends = [part.peak_range or (part.peak_reserved_bytes,) * 2 for part in self.parts]
        return max(low for low, _ in ends), max(high for _, high in ends)

    @property
    def peak_allocated_bytes(self) -> int:
        """torch.cuda.max_memory_allocated()."""
        return max(part.peak_allocated_bytes for part in self.parts)

    @property
    def min_device_memory_bytes(self) -> int | None:
        """The smallest device that was proved to do; None where none was looked for."""
        return _highest([part.min_device_memory for part in self.parts]) or self.unrefused_device

    @property
    def unrefused_device(self) -> int | None:
        """The smallest device on which nothing has to be tried again; None where unknown."""
        return _highest([part.unrefused_device for part in self.parts])

    @property
    def num_alloc_retries(self) -> int:
        """Requests that emptied the cache first."""
        return max(part.num_alloc_retries for part in self.parts)

    @property
    def num_device_alloc(self) -> int:
        """Calls that got memory from the driver."""
        return max(part.num_device_alloc for part in self.parts)

    @property
    def num_device_free(self) -> int:
        """Calls that gave memory back."""
        return max(part.num_device_free for part in self.parts)

    @property
    def fails_at(self) -> int | None:
        """The first entry that any recording gets no answer at; None if all are answered."""
        return min((p.oom_entry for p in self.parts if p.oom_entry is not None), default=None)

    @property
    def num_ooms(self) -> int:
        """Requests without an answer."""
        return max(part.num_ooms for part in self.parts)

    @property
    def point(self) -> Point:
        """Peak of reserved memory, driver calls, retries."""
        calls = self.num_device_alloc + self.num_device_free
        return Point(self.peak_reserved_bytes, calls, self.num_alloc_retries)

    @property
    def device_point(self) -> Point | None:
        """The same of the smallest device, and of a run on it; None where it is not known."""
        at = [part.at_min for part in self.parts if part.at_min is not None]
        memory = _highest([part.min_device_memory for part in self.parts])
        if memory is None or len(at) < len(self.parts):
            return None
        calls = max(allocs + frees for _, allocs, frees in at)
        return Point(memory, calls, max(retries for retries, _, _ in at))

    def rank(self, *, by_device: bool = False) -> tuple[object, ...]:
        """What to sort by, the best first: what survives, without thrashing, with few retries.

        by_device: the smallest device counts, not the peak of reserved memory.
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
    """The highest, None if any is unknown."""
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def row_of(
    setting: Setting,
    release: Release,
    parts: Sequence[Trial],
    costs: Costs,
    same_as: Setting | None = None,
) -> Row:
    """The row of a setting that `release` accepts."""
    every = [cost_of(part, costs) for part in parts]
    cost = max(every, key=lambda cost: (cost.is_thrashing, cost.total))
    return Row(setting, setting.fraction(release), tuple(parts), cost, same_as)
