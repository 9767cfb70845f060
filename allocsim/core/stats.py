"""The statistics of torch.cuda.memory_stats(), kept off the path of each call.

Rule: a call leaves one record; `fold` adds the records up later, in order, so that currents,
totals and peaks are those of counting at each call.  A record is one number in each column of
the journal (`Journal`).  A block is active until its free is complete, allocated until its user
frees it; what waits in between stands beside the records.  Source: semantics 3.

Long because the loop that adds the records up is written out (`_moves`), and every key of
torch.cuda.memory_stats() is named here once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from allocsim.core.columns import Column, column_of
from allocsim.core.releases import Release

__all__ = [
    "DeviceStats",
    "Folder",
    "GroupMoves",
    "Journal",
    "Marked",
    "Moves",
    "Stat",
    "FOLD_AT",
    "SHORT",
    "fold_records",
]

Journal = tuple[list[int], list[int], list[int], list[int], list[int]]
"""Records of active blocks as columns: the bytes of the block, of a free in negative numbers; the
bytes requested, of a free, too; what became inactive split, sixteen times the bytes and twice the
blocks, -2 to 1, and 1 more in the small pool.  Columns, because a tuple for each record took as
long as three numbers do.  The last two are of blocks that began to wait for the end of their free,
or in negative numbers ceased to: how many records there were before; twice the bytes, and 1 more in
the small pool.

Mostly the bytes that become inactive split are those of the block itself: then the third column
has four times the blocks that did, and 2 more, and 1 more in the small pool.  Such a short one is
below `SHORT`, no other is."""

SHORT: Final = 16

FOLD_AT: Final = 2048
"""Records kept before they are folded: enough to pay for a fold's set-up, few enough for the
processor's cache."""


@dataclass(slots=True)
class Moves:
    """What a row of changes came to: their sum, the highest sum on the way (0 at least) and the
    sum of the increases."""

    change: int = 0
    peak: int = 0
    grown: int = 0

    def move(self, amount: int) -> None:
        """One more change."""
        self.change += amount
        self.peak = max(self.peak, self.change)
        self.grown += max(amount, 0)


GroupMoves = tuple[Moves, Moves, Moves, Moves, Moves, Moves, Moves]
"""Of a fold: allocated blocks and bytes, active blocks and bytes, bytes requested, inactive splits
and their bytes."""

Folder = Callable[[Journal], tuple[GroupMoves, GroupMoves, GroupMoves]]
"""Records to the moves of all, small_pool and large_pool."""


@dataclass(slots=True)
class Stat:
    """One statistic."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def increase(self, amount: int) -> None:
        self.current += amount
        self.peak = max(self.peak, self.current)
        self.allocated += amount

    def decrease(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount

    def move(self, amount: int) -> None:
        """A net change: positive counts as allocated, negative as freed, zero not at all."""
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
"""How many of them records tell; the others are of segments."""


@dataclass(slots=True)
class StatGroup:
    """The nine array statistics of one column: `all`, `small_pool` or `large_pool`."""

    allocation: Stat = field(default_factory=Stat)
    allocated_bytes: Stat = field(default_factory=Stat)
    active: Stat = field(default_factory=Stat)
    active_bytes: Stat = field(default_factory=Stat)
    requested_bytes: Stat = field(default_factory=Stat)
    inactive_split: Stat = field(default_factory=Stat)
    inactive_split_bytes: Stat = field(default_factory=Stat)
    segment: Stat = field(default_factory=Stat)
    reserved_bytes: Stat = field(default_factory=Stat)

    def advance(self, moves: GroupMoves) -> None:
        """Count a fold."""
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

    def restart(self) -> None:
        """Forget what folds counted."""
        for name in _BLOCK_STATS[:_FOLDED]:
            setattr(self, name, Stat())

    def stats(self) -> tuple[tuple[str, Stat], ...]:
        return tuple((name, getattr(self, name)) for name in _BLOCK_STATS)


@dataclass(frozen=True, slots=True)
class Marked:
    """Bytes allocated, active and inactive split at a moment that was marked."""

    allocated: int = 0
    active: int = 0
    inactive_split: int = 0


_ActiveMoves = tuple[Moves, Moves, Moves, Moves, Moves]


def fold_records(journal: Journal) -> tuple[GroupMoves, GroupMoves, GroupMoves]:
    """The moves of all, small_pool and large_pool, one record after another."""
    sizes, requests, inactive, at, waits = map(column_of, journal)
    every, small, large = (_moves(sizes, requests, inactive, without) for without in (-1, 0, 1))
    if not waits:
        return every[:2] + every, small[:2] + small, large[:2] + large
    of_every, of_small, of_large = (
        _allocated(sizes, inactive, at, waits, without) for without in (-1, 0, 1)
    )
    return of_every + every, of_small + small, of_large + large


def _allocated(
    sizes: list[int], inactive: list[int], at: list[int], waits: list[int], without: int
) -> tuple[Moves, Moves]:
    """Blocks and bytes that were active and did not wait; in local variables, as in `_moves`, which
    says what `without` is."""
    count = 0
    peak_count = 0
    mallocs = 0
    size = 0
    peak_size = 0
    grown = 0
    done = 0
    n_sizes, n_waits = len(sizes), len(at)
    for number in range(n_sizes + 1):
        while done < n_waits and at[done] <= number:
            waited = waits[done]
            done += 1
            if waited & 1 != without:
                count -= 1 if waited > 0 else -1
                size -= waited >> 1
        if number == n_sizes:
            break
        if inactive[number] & 1 != without:
            held = sizes[number]
            size += held
            if held > 0:
                count += 1
                mallocs += 1
                grown += held
            else:
                count -= 1
        if count > peak_count:
            peak_count = count
        if size > peak_size:
            peak_size = size
    return Moves(count, peak_count, mallocs), Moves(size, peak_size, grown)


def _moves(  # noqa: PLR0912, PLR0915  (one loop, by design)
    sizes: list[int], requests: list[int], inactive: list[int], without: int
) -> _ActiveMoves:
    """The sums of one column.  without: what is left out, 1 the small pool, 0 the large one.

    Local variables, because this loop is most of the price of full accounting; machine words for
    the compiled form.
    """
    count = 0
    peak_count = 0
    mallocs = 0
    size = 0
    peak_size = 0
    grown = 0
    requested = 0
    peak_requested = 0
    grown_requested = 0
    split = 0
    peak_split = 0
    grown_split = 0
    idle = 0
    peak_idle = 0
    grown_idle = 0
    short = SHORT
    for at in range(len(sizes)):
        held, asked, rest = sizes[at], requests[at], inactive[at]
        if rest & 1 == without:
            continue
        size += held
        if held > 0:
            requested += asked
            count += 1
            mallocs += 1
            grown += held
            grown_requested += asked
            if count > peak_count:
                peak_count = count
            if size > peak_size:
                peak_size = size
            if requested > peak_requested:
                peak_requested = requested
        else:
            requested -= asked
            count -= 1
        if not 0 <= rest <= 1:
            if -short < rest < short:
                splits = rest >> 2
                split_bytes = -held
            else:
                rest >>= 1
                splits = ((rest + 4) & 7) - 4
                split_bytes = (rest - splits) >> 3
            idle += split_bytes
            split += splits
            if split_bytes > 0:
                grown_idle += split_bytes
                if idle > peak_idle:
                    peak_idle = idle
            if splits > 0:
                grown_split += splits
                if split > peak_split:
                    peak_split = split
    return (
        Moves(count, peak_count, mallocs),
        Moves(size, peak_size, grown),
        Moves(requested, peak_requested, grown_requested),
        Moves(split, peak_split, grown_split),
        Moves(idle, peak_idle, grown_idle),
    )


def _parted(journal: Journal, n_records: int, n_waits: int) -> tuple[Journal, Journal]:
    """The first `n_records` records and `n_waits` waits, and those after."""
    sizes, requests, inactive, at, waits = map(list, journal)
    before = (sizes[:n_records], requests[:n_records], inactive[:n_records])
    after = (sizes[n_records:], requests[n_records:], inactive[n_records:])
    later = [number - n_records for number in at[n_waits:]]
    return (*before, at[:n_waits], waits[:n_waits]), (*after, later, waits[n_waits:])


class DeviceStats:
    """All statistics of one device.

    journal: the records not counted yet.  folder: counts them; any that gives what
    `fold_records` gives.  marked: of the moment of the last mark, once it is counted; mark_at:
    how many records and waits of the journal came before one that is not.
    """

    __slots__ = (
        "release",
        "max_split_size",
        "all",
        "pools",
        "journal",
        "folder",
        "marked",
        "mark_at",
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
        self.marked = Marked()
        self.mark_at: tuple[int, int] | None = None
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

    def note(
        self, is_small: bool, size: int, requested: int, splits: int, split_bytes: int
    ) -> None:
        """Leave the record of one malloc, or of one free with its size in negative numbers."""
        sizes, requests, inactive, _, _ = self.journal
        sizes.append(size)
        requests.append(requested)
        inactive.append(16 * split_bytes + 2 * splits + is_small)
        if len(sizes) > FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Count everything recorded so far."""
        if self.mark_at is not None:
            before, after = _parted(self.journal, *self.mark_at)
            self.mark_at = None
            self._count(before)
            every = self.all
            self.marked = Marked(
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
            self.all.advance(every)
            self.pools[True].advance(small)
            self.pools[False].advance(large)

    def mark(self) -> None:
        """Have this moment's bytes in `marked` after the next fold.

        Of marks without a fold between them the last counts: who looks for the highest moment
        marks each growth, and to count at each was a sixth of a replay of many blocks.
        """
        self.mark_at = (len(self.journal[0]), len(self.journal[3]))

    def recount(self, journal: Journal) -> None:
        """Count `journal` and nothing else."""
        self.fold()  # for the sake of a mark
        every, small, large = self.folder(journal)
        for group, moves in zip(
            (self.all, *self.pools.values()), (every, small, large), strict=True
        ):
            group.restart()
            group.advance(moves)

    def free_requested(self, is_small: bool, size: int) -> None:
        """A block was freed by its user and waits for other streams."""
        self.journal[3].append(len(self.journal[0]))
        self.journal[4].append(2 * size + is_small)

    def free_completed(
        self, is_small: bool, size: int, requested: int, splits: int, split_bytes: int
    ) -> None:
        """A block that waited became free."""
        self.journal[3].append(len(self.journal[0]))
        self.journal[4].append(is_small - 2 * size)
        self.note(is_small, -size, requested, splits, split_bytes)

    # -- what happens seldom ---------------------------------------------------------------

    def count_planted(
        self,
        is_small: bool,
        size: int,
        *,
        requested: int,
        allocated: bool,
        active: bool,
        split: bool,
    ) -> None:
        """A block was there before the simulation began; it counts as allocated just now."""
        for group in (self.all, self.pools[is_small]):
            if allocated:
                group.allocation.increase(1)
                group.allocated_bytes.increase(size)
            if active:
                group.active.increase(1)
                group.active_bytes.increase(size)
                group.requested_bytes.increase(requested)
            elif split:
                group.inactive_split.increase(1)
                group.inactive_split_bytes.increase(size)

    def count_reserved(self, is_small: bool, size: int, pool_id: tuple[int, int]) -> None:
        """`size` bytes came from the driver (negative: went back)."""
        self.all.reserved_bytes.move(size)
        self.pools[is_small].reserved_bytes.move(size)
        if self.release.counts_private_pools and pool_id != (0, 0):
            columns = self.reserved_by_pool.setdefault(
                pool_id, {"all": Stat(), "small_pool": Stat(), "large_pool": Stat()}
            )
            columns["all"].move(size)
            columns["small_pool" if is_small else "large_pool"].move(size)

    def count_segments(self, is_small: bool, change: int) -> None:
        """A segment was made by cudaMalloc (+1) or given back by cudaFree (-1)."""
        self.all.segment.move(change)
        self.pools[is_small].segment.move(change)

    # -- reading and resetting ---------------------------------------------------------------

    def allocated_bytes(self) -> int:
        """Bytes of allocated blocks now."""
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
        """The flat dict of torch.cuda.memory_stats(), sorted by key, as this release has it."""
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
