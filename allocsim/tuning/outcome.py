"""What one replay of one device of a recording under one setting came to.

Rule: plain numbers, so that an outcome travels between processes and into a file unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from allocsim.core import CachingAllocator
from allocsim.engine import SimulatedOom
from allocsim.tuning.pareto import Point

__all__ = ["Outcome", "outcome_of"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Bytes and calls of one replay.

    peak_device_bytes: the most that the device had to hold, the context and odd ends of pages
    included.  obtained_small, obtained_large: bytes from the driver over the run, by pool.
    returned_bytes: those given back.  num_maps: how many of num_device_alloc were mappings.
    refused: whether the driver or a limit may have refused a request: something was given back.
    unrefused_device: the smallest device on which the driver refuses nothing, None where that
    is not known.  min_device_memory: the smallest device that does, retries and all, None where
    it was not looked for; fails_at: the entry that fails on one 2 MiB smaller; at_min: (retries,
    device allocs, device frees) there.
    oom_entry: the first request without an answer.  dropped_at: the entry at which the replay
    was given up, because the setting could no longer win; then the figures are those up to it.
    least_peak: bytes that the peak would surely have reached, where that told so.
    entries: how many were replayed for all this; skipped: how many were passed over.
    error: why there is no outcome at all.
    """

    peak_reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_device_bytes: int = 0
    num_alloc_retries: int = 0
    num_device_alloc: int = 0
    num_device_free: int = 0
    num_sync_all_streams: int = 0
    num_ooms: int = 0
    num_maps: int = 0
    obtained_small: int = 0
    obtained_large: int = 0
    returned_bytes: int = 0
    refused: bool = False
    unrefused_device: int | None = None
    min_device_memory: int | None = None
    fails_at: int | None = None
    at_min: tuple[int, int, int] | None = None
    oom_entry: int | None = None
    dropped_at: int | None = None
    least_peak: int = 0
    entries: int = 0
    skipped: int = 0
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

    def plain(self) -> dict[str, Any]:
        """The fields that are not at their default, for a file."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return {
            part.name: values[part.name]
            for part in fields(self)
            if values[part.name] != part.default
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Outcome:
        """What `plain` wrote.  Raises TypeError for anything else."""
        at_min = plain.get("at_min")
        return cls(**{**plain, "at_min": None if at_min is None else tuple(at_min)})


def outcome_of(
    allocator: CachingAllocator,
    *,
    peak_device_bytes: int,
    ooms: Sequence[SimulatedOom],
    entries: int,
    dropped_at: int | None = None,
    empties: bool = False,
) -> Outcome:
    """The figures of an allocator after `entries` entries, at the end or given up.

    empties: the program itself empties the cache, and nothing else gives memory back unasked.
    """
    stats = allocator.heap.stats
    stats.fold()
    every, small, large = stats.all, stats.pools[True], stats.pools[False]
    maps = 0
    if allocator.config.expandable_segments:
        maps = max(stats.num_device_alloc - every.segment.allocated, 0)
    return Outcome(
        peak_reserved_bytes=every.reserved_bytes.peak,
        peak_allocated_bytes=every.allocated_bytes.peak,
        peak_device_bytes=peak_device_bytes,
        num_alloc_retries=stats.num_alloc_retries,
        num_device_alloc=stats.num_device_alloc,
        num_device_free=stats.num_device_free,
        num_sync_all_streams=stats.num_sync_all_streams,
        num_ooms=len(ooms),
        num_maps=maps,
        obtained_small=small.reserved_bytes.allocated,
        obtained_large=large.reserved_bytes.allocated,
        returned_bytes=every.reserved_bytes.freed,
        refused=bool(stats.num_alloc_retries or ooms or (stats.num_device_free and not empties)),
        oom_entry=ooms[0].entry if ooms else None,
        dropped_at=dropped_at,
        entries=entries,
    )
