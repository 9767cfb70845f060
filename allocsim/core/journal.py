"""Journal: the list of changes to the statistics of blocks that are not applied yet.

A journal has five columns (`Journal`).  A malloc or free appends a record: one number to each of
the columns 1 to 3.  Column 1 has the bytes of the block, negative for a free.  A freed block that
other streams still use waits for them; when its wait begins and when it ends, one number is
appended to each of the columns 4 and 5.  `fold_records` adds up all columns in order, so that
current values, peaks and totals are the same as if counted at each call.

A block is inactive split if it is free and shares its segment (inactive_split of memory_stats()).
A record changes the number of such blocks by `blocks`, and their bytes by `bytes`.  Column 3 packs
both changes and the pool into one integer.  It has a long and two short forms:

    BYTES * bytes + SPLIT * blocks + is_small    long
    OWN + OWN_STEP * blocks + is_small           short, if `bytes` is minus the number in column 1
    is_small                                     short, if nothing changes

Short forms are below `SHORT` in absolute value.  The long form is not, because a change has at
least 512 bytes.  Source: semantics 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from allocsim.core.columns import column_of

# _fast_path.pyx repeats these constants for the compiled form.

BYTES: Final = 16
"""Factor of the change in inactive split bytes, in the long form of column 3 of a journal."""

SPLIT: Final = 2
"""Factor of the change in inactive split blocks (-2 to 1), in the long form of column 3."""

OWN: Final = 2
"""Short form of column 3 of a journal if the number of inactive split blocks does not change."""

OWN_PLUS: Final = 6
"""Short form of column 3 of a journal if the number of inactive split blocks increases by 1."""

OWN_MINUS: Final = -2
"""Short form of column 3 of a journal if the number of inactive split blocks decreases by 1."""

OWN_STEP: Final = 4
"""Factor of the change in inactive split blocks, in the short form of column 3 of a journal."""

SHORT: Final = 16
"""Upper limit of short forms of column 3 of a journal: their absolute values are smaller."""

FOLD_AT: Final = 2048
"""Number of records after which they are added up: enough to be efficient, few enough for the
processor's cache."""

Journal = tuple[list[int], list[int], list[int], list[int], list[int]]
"""Five columns: three of the records, and two of the freed blocks that wait for other streams.

1. Bytes of the block, negative for a free.
2. Requested bytes, positive for a free as well.
3. Change of inactive split blocks, packed with the pool.
4. Number of records before the wait began or ended.
5. Bytes of the waiting block, negative at the end of the wait, packed with the pool
   (`encode_wait`).
"""


def encode(is_small: bool, splits: int, split_bytes: int) -> int:
    """Return the long form of column 3 (see the module) for a change in inactive split blocks.

    splits, split_bytes: change in the number of these blocks and in their bytes.
    """
    return BYTES * split_bytes + SPLIT * splits + is_small


def decode_short(packed: Any, size: Any) -> tuple[Any, Any]:
    """Decode the short form of column 3 (see the module).

    Return the change in the number of inactive split blocks, and the change in their bytes.

    size: number in column 1 of the same record.
    """
    return packed >> 2, (packed >> 1 & 1) * -size


def decode_long(packed: Any) -> tuple[Any, Any]:
    """Decode the long form of column 3 (see the module).

    Return the change in the number of inactive split blocks, and the change in their bytes.
    """
    unpooled = packed >> 1
    # The low three bits are the number of blocks, from -4 to 3.
    splits = (unpooled + 4 & 7) - 4
    return splits, unpooled - splits >> 3


def encode_wait(is_small: bool, size: int) -> int:
    """Pack the pool and the bytes of a waiting block into one integer for column 5 of a journal."""
    return 2 * size + is_small


def decode_wait(packed: Any) -> Any:
    """Return the bytes of the block that `encode_wait` packed; negative if its wait has ended."""
    return packed >> 1


@dataclass(slots=True)
class Moves:
    """Effect of a series of changes on one statistic, such as allocated bytes.

    change: sum of the changes.
    peak: highest running sum of the changes; at least 0.
    grown: sum of the positive changes.
    """

    change: int = 0
    peak: int = 0
    grown: int = 0


GroupMoves = tuple[Moves, Moves, Moves, Moves, Moves, Moves, Moves]
"""`Moves` of seven statistics: allocated blocks, allocated bytes, active blocks, active bytes,
requested bytes, inactive split blocks, inactive split bytes."""

Folder = Callable[[Journal], tuple[GroupMoves, GroupMoves, GroupMoves]]
"""Function that adds up the changes in a journal, for `all`, `small_pool` and `large_pool`."""


_ActiveMoves = tuple[Moves, Moves, Moves, Moves, Moves]


def fold_records(journal: Journal) -> tuple[GroupMoves, GroupMoves, GroupMoves]:
    """Add up the changes in a journal, for the groups `all`, `small_pool` and `large_pool`.

    Returns the change, peak and increase of seven statistics of memory_stats() for each group.
    """
    sizes, requests, inactive, at, waits = map(column_of, journal)
    every, small, large = (
        _fold_active(sizes, requests, inactive, without) for without in (-1, 0, 1)
    )
    if not waits:
        return every[:2] + every, small[:2] + small, large[:2] + large
    of_every, of_small, of_large = (
        _fold_allocated(sizes, inactive, at, waits, without) for without in (-1, 0, 1)
    )
    return of_every + every, of_small + small, of_large + large


def _fold_allocated(
    sizes: list[int], inactive: list[int], at: list[int], waits: list[int], without: int
) -> tuple[Moves, Moves]:
    """Add up the changes of two statistics: the number of allocated blocks, and their bytes.

    A block is allocated if it is active and does not wait for another stream.
    sizes, inactive: columns 1 and 3 of the journal, which have the changes of active blocks.
    at, waits: columns 4 and 5 of the journal, which have the changes of waiting blocks.
    without: pool to leave out: 1 the small pool, 0 the large pool, -1 none.
    """
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


def _fold_active(  # noqa: PLR0912, PLR0915  (one loop, by design)
    sizes: list[int], requests: list[int], inactive: list[int], without: int
) -> _ActiveMoves:
    """Add up the changes of five statistics in a journal.

    They are active blocks and bytes, requested bytes, and inactive split blocks and bytes.

    sizes, requests, inactive: columns 1 to 3 of the journal.
    without: pool to leave out: 1 the small pool, 0 the large pool, -1 none.
    """
    # Only local variables, because this loop takes most of the time of the statistics.  In the
    # compiled form they are machine words.
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
    inactive_bytes = 0
    peak_split_bytes = 0
    grown_split_bytes = 0
    short = SHORT
    for at in range(len(sizes)):
        held, requested_bytes, packed = sizes[at], requests[at], inactive[at]
        if packed & 1 == without:
            continue
        size += held
        if held > 0:
            requested += requested_bytes
            count += 1
            mallocs += 1
            grown += held
            grown_requested += requested_bytes
            if count > peak_count:
                peak_count = count
            if size > peak_size:
                peak_size = size
            if requested > peak_requested:
                peak_requested = requested
        else:
            requested -= requested_bytes
            count -= 1
        if not 0 <= packed <= 1:
            if -short < packed < short:
                splits = packed >> 2  # decode_short
                split_bytes = -held
            else:
                packed >>= 1  # decode_long
                splits = ((packed + 4) & 7) - 4
                split_bytes = (packed - splits) >> 3
            inactive_bytes += split_bytes
            split += splits
            if split_bytes > 0:
                grown_split_bytes += split_bytes
                if inactive_bytes > peak_split_bytes:
                    peak_split_bytes = inactive_bytes
            if splits > 0:
                grown_split += splits
                if split > peak_split:
                    peak_split = split
    return (
        Moves(count, peak_count, mallocs),
        Moves(size, peak_size, grown),
        Moves(requested, peak_requested, grown_requested),
        Moves(split, peak_split, grown_split),
        Moves(inactive_bytes, peak_split_bytes, grown_split_bytes),
    )


def split_journal(journal: Journal, n_records: int, n_waits: int) -> tuple[Journal, Journal]:
    """Split a journal in two; the first part has `n_records` records and `n_waits` waits."""
    sizes, requests, inactive, at, waits = map(list, journal)
    before = (sizes[:n_records], requests[:n_records], inactive[:n_records])
    after = (sizes[n_records:], requests[n_records:], inactive[n_records:])
    later = [number - n_records for number in at[n_waits:]]
    return (*before, at[:n_waits], waits[:n_waits]), (*after, later, waits[n_waits:])
