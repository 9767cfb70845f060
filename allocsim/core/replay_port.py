"""The allocator for replays of recordings, with calls that no program makes.

A replay calls a block by its name, which is the recorded address.  It completes a pending free when
the recording does, and it may begin with existing segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from allocsim.core.allocator import CachingAllocator
from allocsim.core.block import Block
from allocsim.core.columns import BlockColumns, Names, block_columns
from allocsim.core.constants import IS_COMPILED
from allocsim.core.fast_path import PlainStep
from allocsim.core.journal import Folder, Journal
from allocsim.core.pending import RequestedFree
from allocsim.core.seed import plant
from allocsim.core.stats import Marked
from allocsim.state import SegmentState

if TYPE_CHECKING or not IS_COMPILED:
    from allocsim.core.fast_path import play
else:
    from allocsim.core._fast_path import play


class ReplayAllocator(CachingAllocator):
    """Caching allocator for replays; the arguments are those of `CachingAllocator`."""

    def play(
        self,
        steps: Iterable[PlainStep],
        waiting: dict[int, RequestedFree],
        moved: list[int],
        places: list[int] | None = None,
    ) -> PlainStep | None:
        """Replay plain steps: mallocs and frees that only search, split and merge free blocks.

        waiting: frees that a step requested and a later step completes, by block name.
        moved: list to which the change of allocated bytes of each step is appended.
        places: list to which the address of each step's block is appended.  The history then gets
            no entries, because the caller makes them from the steps and these addresses.

        Returns the first step that is not plain, or None after the last step.
        """
        heap = self.heap
        # Without the fast loop no step is plain, so the caller makes every call.
        if not self._has_fast_path:
            return next(iter(steps), None)
        if places is None:
            return play(heap, self.private_pools, self._pending, steps, waiting, moved)
        # The caller makes the history entries from `places`.
        trace, heap.trace = heap.trace, None
        try:
            return play(heap, self.private_pools, self._pending, steps, waiting, moved, places)
        finally:
            heap.trace = trace

    def give_name(self, ptr: int, name: int) -> Block:
        """Let steps refer to the block at `ptr` by `name`, and no longer by its address."""
        block = self.heap.named[name] = self.heap.live.pop(ptr)
        return block

    def name_by_address(self) -> int:
        """Use the address of each allocated block as its name; return the bytes of all of them."""
        return sum(self.give_name(ptr, ptr).size for ptr in list(self.heap.live))

    def rename(self, new_name: Callable[[int], int]) -> None:
        """Replace the name of every named block with `new_name(name)`."""
        renamed: dict[int, Block] = Names()
        for old, block in self.heap.named.items():
            renamed[new_name(old)] = block
        self.heap.named = renamed

    @property
    def named_blocks(self) -> dict[int, Block]:
        """Allocated blocks by the name that a replay gave them, a recorded address; read-only."""
        return self.heap.named

    def take_name(self, name: int) -> int | None:
        """Remove a name and return the address of its block; None if no block has the name.

        The block is then known by its address again, for `free`.
        """
        block = self.heap.named.pop(name, None)
        if block is None:
            return None
        self.heap.live[block.ptr] = block
        return block.ptr

    def request_free(self, ptr: int) -> RequestedFree:
        """Begin to free the block at `ptr`; `complete_free` completes the free.

        A recording shows when a free completed, but not the events that it waited for.
        """
        return self._pending.add_requested(self._pop_live(ptr))

    @property
    def requested_frees(self) -> tuple[RequestedFree, ...]:
        """Frees that wait for `complete_free`, including those from `seed`."""
        return self._pending.requested

    def wait_last_for(self, free: RequestedFree) -> None:
        """Let a wait for all events complete this free after all other requested frees.

        A recording shows the order of the waits for streams.
        """
        self._pending.put_last(free)

    def complete_free(self, free: RequestedFree) -> bool:
        """Complete a free from `request_free`; return False if it is already complete."""
        return self._pending.complete(free)

    def limit_to(self, limit: int) -> None:
        """Limit reserved memory to `limit` bytes; a recording does not show the memory fraction."""
        self.heap.limit = limit

    @property
    def collects_garbage_above(self) -> int | None:
        """Reserved bytes above which a request collects garbage (1.9), or None if it never does."""
        if not self.heap.collects_garbage or self.heap.limit is None:
            return None
        return int(self.config.garbage_collection_threshold * self.heap.limit)

    def count_with(self, folder: Folder) -> None:
        """Use `folder` to sum up the size changes that the statistics are computed from.

        The default is `fold_records` in stats.py; replays pass a faster function, which uses NumPy.
        """
        self.heap.stats.folder = folder

    def recount(self, journal: Journal) -> None:
        """Replace the statistics of blocks with those of `journal`.

        For callers that skip repeated steps and supply the records of all steps.
        """
        self.heap.stats.recount(journal)

    def mark(self) -> None:
        """Remember the bytes allocated, active and inactive split now, in place of earlier ones."""
        self.heap.stats.mark()

    def marked(self) -> Marked:
        """Return the bytes that the last call of `mark` remembered."""
        return self.statistics().marked

    def block_columns(self) -> tuple[BlockColumns, int]:
        """Return all blocks as columns, active blocks first, and the number of active blocks."""
        active = self.heap.active
        free = [block for pool in self.heap.pools for block in pool]
        return block_columns([*active, *free]), len(active)

    def seed(self, segments: Iterable[SegmentState]) -> None:
        """Create segments that existed before the recording, in an allocator without segments."""
        self._pending.adopt(plant(self.heap, self.private_pools, segments))
