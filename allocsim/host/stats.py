"""Statistics of torch.cuda.host_memory_stats(), without times.

Active blocks are counted for each power of two, and the totals are sums over these buckets.  So a
peak is the sum of peaks that need not coincide.  Source: semantics 13.5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from allocsim.core import HostStatNames, Stat


def _stats() -> defaultdict[int, Stat]:
    return defaultdict(Stat)


@dataclass(slots=True)
class ActiveStats:
    """Number and bytes of blocks in use, for each power of two."""

    count: defaultdict[int, Stat] = field(default_factory=_stats)
    size: defaultdict[int, Stat] = field(default_factory=_stats)

    def increase(self, bucket: int, size: int) -> None:
        self.count[bucket].increase(1)
        self.size[bucket].increase(size)

    def decrease(self, bucket: int, size: int) -> None:
        self.count[bucket].decrease(1)
        self.size[bucket].decrease(size)

    def all(self) -> list[Stat]:
        return [*self.count.values(), *self.size.values()]

    def absorb(self, other: ActiveStats) -> None:
        """Add the statistics of `other`, a pool that is deleted, to these."""
        for ours, theirs in ((self.count, other.count), (self.size, other.size)):
            for bucket, stat in theirs.items():
                _add(ours[bucket], stat)


@dataclass(slots=True)
class OwnedStats:
    """Number and bytes of the blocks that the allocator has pinned, in use or cached.

    n_alloc, n_free: driver calls since the last reset; the reserve segment is one.
    """

    count: Stat = field(default_factory=Stat)
    size: Stat = field(default_factory=Stat)
    n_alloc: int = 0
    n_free: int = 0

    def increase(self, size: int) -> None:
        self.count.increase(1)
        self.size.increase(size)

    def decrease(self, size: int) -> None:
        self.count.decrease(1)
        self.size.decrease(size)

    def reset_accumulated(self) -> None:
        self.count.reset_accumulated()
        self.size.reset_accumulated()
        self.n_alloc = self.n_free = 0


def flattened(
    names: HostStatNames, owned: OwnedStats, pools: Iterable[ActiveStats]
) -> dict[str, int]:
    """Return statistics by the keys of torch.cuda.host_memory_stats().

    names: keys of a release.
    owned: pinned memory of all pools together.
    pools: blocks in use, for each pool.
    """
    count, size = Stat(), Stat()
    for active in pools:
        for bucket in active.count:
            _add(count, active.count[bucket])
            _add(size, active.size[bucket])
    values = {
        names.active: count,
        names.active_bytes: size,
        names.owned: owned.count,
        names.owned_bytes: owned.size,
    }
    flat = {
        f"{name}.{column}": getattr(stat, column)
        for name, stat in values.items()
        for column in ("allocated", "current", "freed", "peak")
    }
    flat |= {
        "host_alloc_time.count": owned.n_alloc,
        "host_free_time.count": owned.n_free,
        "num_host_alloc": owned.count.allocated,
        "num_host_free": owned.count.freed,
    }
    return dict(sorted(flat.items()))


def _add(total: Stat, stat: Stat) -> None:
    total.current += stat.current
    total.peak += stat.peak
    total.allocated += stat.allocated
    total.freed += stat.freed
