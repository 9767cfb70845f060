"""Statistics of torch.cuda.memory_stats(), computed outside the hot path.

A malloc or free only appends a record to the journal, the list of changes that are not applied yet.
`DeviceStats.fold` applies them later, when a caller reads the statistics.  A block is allocated
until the program frees it, and active until the free is complete.  Source: semantics 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from allocsim.core.columns import Column
from allocsim.core.journal import (
    BYTES,
    FOLD_AT,
    SPLIT,
    Folder,
    GroupMoves,
    Journal,
    encode_wait,
    fold_records,
    split_journal,
)
from allocsim.core.releases import Release

if TYPE_CHECKING:
    from collections.abc import Iterable

    from allocsim.core.block import Block


class Stat:
    """One statistic of torch.cuda.memory_stats().

    allocated: sum of all increases.
    freed: sum of all decreases, as a positive number.
    """

    __slots__ = ("current", "peak", "allocated", "freed")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def increase(self, amount: int) -> None:
        self.current += amount
        self.peak = max(self.peak, self.current)
        self.allocated += amount

    def decrease(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount

    def change_by(self, amount: int) -> None:
        if amount > 0:
            self.increase(amount)
        else:
            self.decrease(-amount)

    def reset_peak(self) -> None:
        self.peak = self.current

    def reset_accumulated(self) -> None:
        self.allocated = self.freed = 0


_BLOCK_STATS = (
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "requested_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "segment",
    "reserved_bytes",
)

_FOLDED: Final = 7
"""Number of statistics in `_BLOCK_STATS` that come from the journal: all but the last two."""


class StatGroup:
    """Statistics of one suffix of memory_stats(): `all`, `small_pool` or `large_pool`."""

    __slots__ = _BLOCK_STATS

    def __init__(self) -> None:
        self.allocation = Stat()
        self.allocated_bytes = Stat()
        self.active = Stat()
        self.active_bytes = Stat()
        self.requested_bytes = Stat()
        self.inactive_split = Stat()
        self.inactive_split_bytes = Stat()
        self.segment = Stat()
        self.reserved_bytes = Stat()

    def add(self, moves: GroupMoves) -> None:
        for stat, moved in zip(
            (
                self.allocation,
                self.allocated_bytes,
                self.active,
                self.active_bytes,
                self.requested_bytes,
                self.inactive_split,
                self.inactive_split_bytes,
            ),
            moves,
            strict=True,
        ):
            stat.peak = max(stat.peak, stat.current + moved.peak)
            stat.current += moved.change
            stat.allocated += moved.grown
            stat.freed += moved.grown - moved.change

    def clear_blocks(self) -> None:
        for name in _BLOCK_STATS[:_FOLDED]:
            setattr(self, name, Stat())

    def stats(self) -> tuple[tuple[str, Stat], ...]:
        return tuple((name, getattr(self, name)) for name in _BLOCK_STATS)


@dataclass(frozen=True, slots=True)
class SavedBytes:
    """Bytes of blocks at the last call of `DeviceStats.save_bytes`.

    active: bytes of allocated blocks and of freed blocks that wait for other streams.
    inactive_split: bytes of free blocks that share their segment.
    """

    allocated: int = 0
    active: int = 0
    inactive_split: int = 0


class DeviceStats:
    """Statistics of one device.

    pools: dictionary from True to the statistics of small pools, and from False to those of large.
    folder: function that adds up the changes in the journal and returns the totals; `fold_records`
        or a faster function with equal results.
    saved_bytes: values at the last call of `save_bytes`, known after the next `fold`.
    saved_at: lengths of the journal's columns 1 and 4 (`Journal`) at the last call of `save_bytes`;
        None after a `fold`.
    reserved_by_pool: dictionary from the id of a private pool to its reserved bytes, keyed by the
        suffix in memory_stats() ("all", "small_pool", "large_pool").
    """

    __slots__ = (
        "release",
        "max_split_size",
        "all",
        "pools",
        "journal",
        "folder",
        "saved_bytes",
        "saved_at",
        "oversize_allocations",
        "oversize_segments",
        "reserved_by_pool",
        "num_alloc_retries",
        "num_ooms",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "num_oom_rejections",
    )

    def __init__(self, release: Release, max_split_size: int) -> None:
        self.release = release
        self.max_split_size = max_split_size
        self.all = StatGroup()
        self.pools = {True: StatGroup(), False: StatGroup()}
        self.journal: Journal = (Column(), Column(), Column(), Column(), Column())
        self.folder: Folder = fold_records
        self.saved_bytes = SavedBytes()
        self.saved_at: tuple[int, int] | None = None
        self.oversize_allocations = Stat()
        self.oversize_segments = Stat()
        self.reserved_by_pool: dict[tuple[int, int], dict[str, Stat]] = {}
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.num_device_alloc = 0
        self.num_device_free = 0
        self.num_oom_rejections = 0

    # -- the hot path ----------------------------------------------------------------------

    def add_record(
        self, is_small: bool, size: int, requested: int, splits: int, split_bytes: int
    ) -> None:
        """Append a malloc, or a free if `size` is negative, to the journal of pending changes.

        splits, split_bytes: change of the number and bytes of inactive split blocks.
        """
        sizes, requests, inactive, _, _ = self.journal
        sizes.append(size)
        requests.append(requested)
        inactive.append(BYTES * split_bytes + SPLIT * splits + is_small)
        if len(sizes) > FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Apply all changes in the journal to the statistics, and clear the journal."""
        if self.saved_at is not None:
            # First add up the records from before `save_bytes`, so that its values are current.
            before, after = split_journal(self.journal, *self.saved_at)
            self.saved_at = None
            self._count(before)
            every = self.all
            self.saved_bytes = SavedBytes(
                every.allocated_bytes.current,
                every.active_bytes.current,
                every.inactive_split_bytes.current,
            )
            self._count(after)
        else:
            self._count(self.journal)
        for column in self.journal:
            column.clear()

    def _count(self, journal: Journal) -> None:
        if journal[0] or journal[3]:
            every, small, large = self.folder(journal)
            self.all.add(every)
            self.pools[True].add(small)
            self.pools[False].add(large)

    def save_bytes(self) -> None:
        # Deferred, because a search for the peak calls this at each growth: folding each time took
        # a sixth of a replay of many blocks.
        self.saved_at = (len(self.journal[0]), len(self.journal[3]))

    def set_block_statistics(self, journals: Iterable[Journal]) -> None:
        self.fold()  # sets `saved_bytes`
        groups = (self.all, *self.pools.values())
        for group in groups:
            group.clear_blocks()
        for journal in journals:
            for group, moves in zip(groups, self.folder(journal), strict=True):
                group.add(moves)

    def free_requested(self, is_small: bool, size: int) -> None:
        """Record in the journal that a freed block begins to wait for other streams."""
        self.journal[3].append(len(self.journal[0]))
        self.journal[4].append(encode_wait(is_small, size))

    def free_completed(
        self, is_small: bool, size: int, requested: int, splits: int, split_bytes: int
    ) -> None:
        """Record in the journal that a freed block no longer waits for other streams.

        splits, split_bytes: change of the number and bytes of inactive split blocks.
        """
        self.journal[3].append(len(self.journal[0]))
        self.journal[4].append(encode_wait(is_small, -size))
        # The block stops being active; it stopped being allocated when the program freed it.
        self.add_record(is_small, -size, requested, splits, split_bytes)

    # -- rare changes ----------------------------------------------------------------------

    def count_planted(self, blocks: list[Block]) -> None:
        """Count blocks from before the simulation as if each had just got its present state."""
        for is_small in (True, False):
            mine = [block for block in blocks if block.pool.is_small == is_small]
            active = [block for block in mine if block.is_active]
            held = [block.size for block in active if block.allocated]
            free = [block for block in mine if not block.is_active]
            split = [block.size for block in free if block.is_split and block.expandable is None]
            active_bytes = sum([block.size for block in active])
            requested_bytes = sum([block.requested_size for block in active])
            for group in (self.all, self.pools[is_small]):
                group.allocation.increase(len(held))
                group.allocated_bytes.increase(sum(held))
                group.active.increase(len(active))
                group.active_bytes.increase(active_bytes)
                group.requested_bytes.increase(requested_bytes)
                group.inactive_split.increase(len(split))
                group.inactive_split_bytes.increase(sum(split))

    def count_reserved(self, is_small: bool, size: int, pool_id: tuple[int, int]) -> None:
        self.all.reserved_bytes.change_by(size)
        self.pools[is_small].reserved_bytes.change_by(size)
        if self.release.counts_private_pools and pool_id != (0, 0):
            columns = self.reserved_by_pool.setdefault(
                pool_id, {"all": Stat(), "small_pool": Stat(), "large_pool": Stat()}
            )
            columns["all"].change_by(size)
            columns["small_pool" if is_small else "large_pool"].change_by(size)

    def count_segments(self, is_small: bool, change: int) -> None:
        self.all.segment.change_by(change)
        self.pools[is_small].segment.change_by(change)

    # -- reading and resetting ---------------------------------------------------------------

    def allocated_bytes(self) -> int:
        self.fold()
        return self.all.allocated_bytes.current

    def _all_stats(self) -> list[Stat]:
        self.fold()
        groups = (self.all, *self.pools.values())
        stats = [stat for group in groups for _, stat in group.stats()]
        return [
            *stats,
            self.oversize_allocations,
            self.oversize_segments,
            *(stat for columns in self.reserved_by_pool.values() for stat in columns.values()),
        ]

    def reset_peak(self) -> None:
        for stat in self._all_stats():
            stat.reset_peak()

    def reset_accumulated(self) -> None:
        for stat in self._all_stats():
            stat.reset_accumulated()
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = self.num_oom_rejections = 0

    def as_dict(self) -> dict[str, int]:
        self.fold()
        columns = (
            ("all", self.all),
            ("small_pool", self.pools[True]),
            ("large_pool", self.pools[False]),
        )
        flat: dict[str, int] = {}
        for column, group in columns:
            for name, stat in group.stats():
                _flatten(flat, f"{name}.{column}", stat)
        _flatten(flat, "oversize_allocations", self.oversize_allocations)
        _flatten(flat, "oversize_segments", self.oversize_segments)
        for (a, b), by_column in self.reserved_by_pool.items():
            for column, stat in by_column.items():
                _flatten(flat, f"reserved_bytes_by_private_pools.{a}_{b}.{column}", stat)
        flat["max_split_size"] = self.max_split_size
        flat["num_alloc_retries"] = self.num_alloc_retries
        flat["num_ooms"] = self.num_ooms
        if self.release.counts_device_calls:
            flat["num_sync_all_streams"] = self.num_sync_all_streams
            flat["num_device_alloc"] = self.num_device_alloc
            flat["num_device_free"] = self.num_device_free
        if self.release.counts_oom_rejections:
            flat["num_oom_rejections"] = self.num_oom_rejections
        return dict(sorted(flat.items()))


def _flatten(flat: dict[str, int], name: str, stat: Stat) -> None:
    flat[f"{name}.current"] = stat.current
    flat[f"{name}.peak"] = stat.peak
    flat[f"{name}.allocated"] = stat.allocated
    flat[f"{name}.freed"] = stat.freed
