"""Statistics of bytes and counts, from a scan of all blocks at each event.

`observe` is called after each event of semantics 3 (a placement, a free, a completion, a driver
call).  An increase since the last scan counts as `allocated`, a decrease as `freed`, which includes
the net rule of inactive_split (2.2).  Counted separately are only values that no block shows: the
oversize figures, which depend on the current option, and the plain counters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.naive.block import Segment

__all__ = ["Stat", "Statistics"]

KINDS = ("all", "small_pool", "large_pool")
NAMES = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
OVERSIZE = ("oversize_allocations", "oversize_segments")
COUNTERS = {
    "num_alloc_retries": 1,
    "num_ooms": 1,
    "num_sync_all_streams": 3,
    "num_device_alloc": 3,
    "num_device_free": 3,
    "num_oom_rejections": 12,
}


@dataclass(slots=True)
class Stat:
    """Current value, peak, and sums of all increases and decreases."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def move(self, change: int) -> None:
        self.current += change
        self.peak = max(self.peak, self.current)
        if change > 0:
            self.allocated += change
        else:
            self.freed -= change


def scan(segments: Iterable[Segment]) -> dict[str, list[int]]:
    """Return the figures of NAMES, in that order, for the small and the large pools."""
    found = {"small_pool": [0] * 9, "large_pool": [0] * 9}
    for segment in segments:
        row = found[segment.pool.kind]
        split = not segment.expandable and len(segment.blocks) > 1
        row[1] += not segment.expandable
        for block in segment.blocks:
            state, size = block.state, block.size
            if state == "unmapped":
                continue
            row[5] += size
            if state == "allocated":
                row[0] += 1
                row[4] += size
            if state != "free":
                row[2] += 1
                row[6] += size
                row[8] += block.requested_size
            elif split:
                row[3] += 1
                row[7] += size
    return found


class Statistics:
    """Values of torch.cuda.memory_stats() in release 2.`minor`."""

    def __init__(self, minor: int, max_split_size: int | None) -> None:
        self._minor = minor
        self._max_split_size = -1 if max_split_size is None else max_split_size
        self._stats = {f"{name}.{kind}": Stat() for name in NAMES for kind in KINDS}
        self.oversize = {name: Stat() for name in OVERSIZE}
        self._pools: dict[str, Stat] = {}
        self.counters = {name: 0 for name, since in COUNTERS.items() if minor >= since}

    def current(self, key: str) -> int:
        return self._stats[key].current

    def count(self, name: str) -> None:
        """Add one to `name`, if the release counts it."""
        if name in self.counters:
            self.counters[name] += 1

    def observe(self, segments: list[Segment]) -> None:
        """Scan, and count the changes since the last scan."""
        found = scan(segments)
        small, large = found["small_pool"], found["large_pool"]
        for name, s, g in zip(NAMES, small, large, strict=True):
            for kind, now in (("all", s + g), ("small_pool", s), ("large_pool", g)):
                stat = self._stats[f"{name}.{kind}"]
                if now != stat.current:
                    stat.move(now - stat.current)
        if self._minor >= 13:
            self._observe_pools(segments)

    def _observe_pools(self, segments: list[Segment]) -> None:
        """Count reserved_bytes for each private pool that ever grew."""
        for number in {s.pool.number for s in segments if s.mapped} - {0}:
            for kind in KINDS:
                self._pools.setdefault(f"0_{number}.{kind}", Stat())
        for key, stat in self._pools.items():
            pool, kind = key.split(".")
            mine = (s for s in segments if f"0_{s.pool.number}" == pool)
            now = sum(s.mapped for s in mine if kind in ("all", s.pool.kind))
            if now != stat.current:
                stat.move(now - stat.current)

    def _all(self) -> dict[str, Stat]:
        pools = {f"reserved_bytes_by_private_pools.{k}": s for k, s in self._pools.items()}
        return {**self._stats, **self.oversize, **pools}

    def reset_peak(self) -> None:
        for stat in self._all().values():
            stat.peak = stat.current

    def reset_accumulated(self) -> None:
        for stat in self._all().values():
            stat.allocated = stat.freed = 0
        self.counters = dict.fromkeys(self.counters, 0)

    def flat(self) -> dict[str, int]:
        """Return the flat dictionary, sorted by key."""
        found = {**self.counters, "max_split_size": self._max_split_size}
        for key, stat in self._all().items():
            found[f"{key}.current"] = stat.current
            found[f"{key}.peak"] = stat.peak
            found[f"{key}.allocated"] = stat.allocated
            found[f"{key}.freed"] = stat.freed
        return dict(sorted(found.items()))
