"""Evidence in a recording for calls that it does not contain.

`Threshold` infers the memory limit from garbage collections: a request that needs new memory first
releases cached blocks until reserved memory is below garbage_collection_threshold * limit.  The
blocks that were released bound the threshold from above, the blocks that were kept bound it from
below (semantics.md, section 1.9).

`learn_start` learns the sizes of blocks from before the first entry.  A recording shows only the
requested size of such a block.  The block may be up to 1 MiB larger, because the large pool splits
a block only if the remainder is larger than that.  If the replay serves a request from the free
memory right after such a block, but the recorded run did not, the block is larger than in the
replay (semantics.md, sections 1.7, 6.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from allocsim.core import (
    MALLOC,
    MIN_BLOCK_SIZE,
    UNLIMITED_DEVICE,
    Block,
    CachingAllocator,
    Column,
    ReplayAllocator,
    StepRow,
    allocated_block,
    finds_free_block,
    garbage,
    mapped_for,
    served_once_free,
    step_rows,
)
from allocsim.inference.gaps import Gap, RecordedEntry
from allocsim.recording import Action
from allocsim.simulation import (
    Drive,
    GiveUpError,
    Plan,
    RecordedDevice,
    StepKind,
    Steps,
    fold_allocated,
)
from allocsim.state import BlockState, SegmentState
from allocsim.units import MIB, TIB, round_up


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the device and the program that are known before a plan is searched.

    memory: bytes of the device; None if unknown.
    max_reserved: highest reserved memory after any entry, in bytes.
    calls: numbers of segment_free and segment_unmap entries whose Python stack names empty_cache.
    is_assumed: True if `memory` is only an assumption.  The search then does not also assume that
        other processes used part of the device.
    empties: False if a hint says that the program never called empty_cache.
    """

    memory: int | None
    max_reserved: int
    calls: frozenset[int]
    is_assumed: bool = False
    empties: bool = True


def was_called(gap: Gap, allocator: ReplayAllocator, facts: Facts) -> bool:
    """Return True if empty_cache is a better explanation of the released memory than a refusal.

    A refusal is a request that the driver refused because the device was full.

    gap: recorded entries that release memory, and the call of the program that follows.
    """
    if gap.released[0].number in facts.calls:
        return True
    if gap.step is not None and gap.step.action == Action.OOM:
        return False
    # A device with enough room does not refuse a request.  If the size of the device is unknown,
    # it is at least the highest reserved memory.
    wanted = _wanted(gap, allocator)
    if facts.memory is not None:
        return wanted <= allocator.device.free
    return allocator.reserved_bytes + wanted <= facts.max_reserved


def is_limited(gap: Gap, allocator: ReplayAllocator) -> bool:
    """Return True if garbage collection, a limit or a new setting may have released the memory.

    gap: recorded entries that release memory, and the call of the program that follows.
    """
    if has_just_set(gap):
        return True
    reserved, above = allocator.reserved_bytes, allocator.collects_garbage_above
    if above is not None and reserved > above:
        return True
    limit, config = allocator.memory_limit, allocator.config
    if limit is None or gap.step is None:
        return False
    # The limit counts the whole segment, even if an expandable segment only grows (1.8).
    return reserved + config.segment_size(config.round_size(gap.step.size)) > limit


def has_just_set(gap: Gap) -> bool:
    return any(call.kind in (StepKind.FRACTION, StepKind.SETTINGS) for call in gap.calls)


def _wanted(gap: Gap, allocator: ReplayAllocator) -> int:
    # An expandable segment may have mapped another range after memory was returned, so the bytes
    # are computed from the state before.
    got, step = sum(entry.size for entry in (*gap.before, *gap.obtained)), gap.step
    if step is None or _finds_free_block(gap, step, allocator):
        return got
    return mapped_for(allocator, step.size, step.stream) or got


def freed_block(gap: Gap, allocator: ReplayAllocator) -> Block | None:
    if gap.free is None:
        return None
    address = gap.free.addr
    return allocator.named_blocks.get(address) or allocated_block(allocator, address)


def _finds_free_block(gap: Gap, step: RecordedEntry, allocator: ReplayAllocator) -> bool:
    freed = freed_block(gap, allocator)
    if freed is None:
        return finds_free_block(allocator, step.size, step.stream)
    return served_once_free(allocator, freed, step.size, step.stream)


_EVEN_SHARES = tuple(share / 100 for share in (*range(95, 0, -5), *range(99, 0, -1)))
"""Memory fractions that programs are likely to set: multiples of 5 % first."""

NO_LIMIT = 1 << 62
_MOST_TRIES = 40


@dataclass(slots=True)
class Threshold:
    """Bounds of the garbage collection threshold and of the memory limit, in bytes.

    share: the option garbage_collection_threshold, from 0 to 1.  The threshold is `share` * limit.
    least_limit: highest reserved memory of the recording; the limit is not lower.
    memory: bytes of the device; None if unknown.
    limit: memory limit that the search tries; None before the search has chosen a limit.
    low, high: the threshold is at least `low` and less than `high`.
    most_limit: the limit is lower than this value.  A refused request lowers the value to the
        reserved memory that the request would have caused.
    """

    share: float
    least_limit: int
    memory: int | None
    limit: int | None = None
    low: int = 0
    high: int = NO_LIMIT
    most_limit: int = field(init=False)
    _tried: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.low = int(self.share * self.least_limit)
        self.most_limit = (self.memory or NO_LIMIT) + 1

    @property
    def in_force(self) -> int:
        """Limit for the next replay: `limit`, or if None, a limit that no request reaches."""
        return self.limit if self.limit is not None else (self.memory or UNLIMITED_DEVICE) - 1

    @property
    def limit_found(self) -> int | None:
        if self.limit is not None:
            return self.limit
        was_reached = self.least_limit > int(self.share * self.in_force)
        return self.in_force if was_reached and self.high < NO_LIMIT else None

    @property
    def limit_range(self) -> tuple[int, int] | None:
        if self.limit is None or self.high == NO_LIMIT:
            return None
        least = max(-int(-self.low // self.share), self.least_limit)
        most = min(-int(-self.high // self.share), self.most_limit) - 1
        ends = [limit for limit in (least, most) if self._allows(limit)]
        return (ends[0], ends[-1]) if len(set(ends)) > 1 else None

    def learn(self, gap: Gap, allocator: CachingAllocator) -> None:
        """Narrow the bounds of the threshold, using the memory that was released in `gap`.

        gap: recorded entries that release memory, and the request that follows.
        allocator: simulated allocator in the state before that request.
        """
        reserved = allocator.reserved_bytes
        if gap.step is not None and gap.step.action == Action.OOM:
            self._refused(reserved, gap, allocator)
        if not gap.obtained:
            return
        released = [entry.addr for entry in gap.released]
        passes = list(garbage(allocator))
        sizes = [sum(block.size for block in blocks) for blocks in passes]
        # Garbage is collected in passes until reserved memory is below the threshold, so the
        # threshold is between the reserved bytes before and after the last pass.
        n_passes = _n_complete_passes(passes, released)
        low, high = self.low, self.high
        if n_passes == 0:
            low = max(low, reserved) if passes else low
        else:
            high = min(high, reserved - sum(sizes[: n_passes - 1]))
            if n_passes < len(passes):
                low = max(low, reserved - sum(sizes[:n_passes]))
        if low < high:  # else the memory was not freed by garbage collection
            self.low, self.high = low, high

    def _refused(self, reserved: int, gap: Gap, allocator: CachingAllocator) -> None:
        # A request that failed although memory was free exceeded the limit.
        size = gap.step.size if gap.step is not None else 0
        left = reserved - sum(entry.size for entry in gap.released)
        if size <= allocator.device.free and left + size > self.least_limit:
            self.most_limit = min(self.most_limit, left + size)

    def choose_limit(self) -> bool:
        """Set `limit` to an untried value within the bounds, and return True.

        Return False, without a change, if `limit` is already within the bounds, if no entry bounds
        it from above, or if no further value is tried.
        """
        most = min(int(self.high / self.share), self.most_limit)
        is_unlimited = self.high == NO_LIMIT and most > (self.memory or NO_LIMIT)
        if is_unlimited or self._allows(self.limit) or len(self._tried) > _MOST_TRIES:
            return False
        least = max(int(self.low / self.share), self.least_limit)
        even = (int(share * (self.memory or 0)) for share in _EVEN_SHARES)
        # A round fraction of the device if possible, else the middle of the range.
        found = next((limit for limit in even if self._allows(limit)), (least + most) // 2)
        if found in self._tried:
            return False
        self._tried.add(found)
        self.limit = found
        return True

    def _allows(self, limit: int | None) -> bool:
        if limit is None or not self.least_limit <= limit < self.most_limit:
            return False
        return self.low <= int(self.share * limit) < self.high


def _n_complete_passes(passes: list[list[Block]], released: list[int]) -> int:
    found = at = 0
    for blocks in passes:
        addresses = [block.ptr for block in blocks]
        if released[at : at + len(addresses)] != addresses:
            break
        at += len(addresses)
        found += 1
    return found


def has_unknown_sizes(device: RecordedDevice) -> bool:
    """Return True if a block from before the first entry may be larger than in `device.start`."""
    return any(block.is_least for segment in device.start for block in segment.blocks)


def learn_start(device: RecordedDevice, plan: Plan) -> tuple[SegmentState, ...]:
    """Return the segments before the first entry, with block sizes corrected by a replay."""
    memory = device.capacity_of(plan)
    allocator = device.allocator(
        device.recorded,
        memory,
        address_policy="bump",
        base_address=round_up(device.last_address, TIB),
        limit=device.limit_for(device.recorded, memory, plan),
    )
    blocks = (block for segment in device.start for block in segment.blocks)
    limits = {block.address: block.size + MIB for block in blocks if block.is_least}
    drive = _Learner(
        allocator,
        plan,
        len(device.trace),
        dictates=True,
        folder=fold_allocated,
        device=device,
        limits=limits,
        ends=_ends_of(limits, plan.steps),
    )
    drive.run()
    return tuple(_with_sizes(segment, drive.sizes) for segment in device.start)


def _ends_of(addresses: Iterable[int], steps: Steps) -> dict[int, int]:
    # The first step at the address of a block is its free, or a request after it.
    at = np.flatnonzero(np.isin(steps.addr, np.array([*addresses], dtype=np.uint64)))[::-1]
    return dict(zip(steps.addr[at].tolist(), at.tolist(), strict=True))


@dataclass
class _Learner(Drive):
    # `limits` has the largest size, and `ends` the last step of each block of unknown size.
    device: RecordedDevice = field(kw_only=True)
    limits: dict[int, int] = field(kw_only=True)
    ends: dict[int, int] = field(kw_only=True)
    sizes: dict[int, int] = field(default_factory=dict)

    def _run_range(self, start: int, stop: int) -> None:
        self._passed_over = start - len(self.timeline)
        steps = self.plan.steps.part(start, stop)
        rows = step_rows((steps.kind, steps.addr, steps.size, steps.stream))
        moved, misplaced = self.timeline.moved, list[StepRow]()
        while self.stopped_at is None:
            places: list[int] = Column()
            known = _to_misplaced(rows, places, misplaced)
            step = self.allocator.play(known, self._waiting, moved, places)
            now = self._passed_over + len(self.timeline)
            if step is not None:
                self._take(*step)
            elif misplaced:
                now -= 1
                step = misplaced.pop()
            else:
                return
            if step[0] == MALLOC:
                self._learn(now, *step[1:])

    def _entry(self) -> int:
        return -1

    def _learn(self, now: int, addr: int, size: int, stream: int) -> None:
        while (block := self.allocator.named_blocks.get(addr)) and block.ptr != addr:
            ptr = self.allocator.take_name(addr)
            assert ptr is not None
            self.allocator.free(ptr)  # now `block` is the free block that was chosen
            before = block.prev
            surplus = block.size - self.device.config.round_size(size) + MIN_BLOCK_SIZE
            if before is None or before.size + surplus > self._limit_of(before, now):
                raise GiveUpError
            self.allocator.extend(before, surplus)
            self.sizes[before.ptr] = before.size
            self._request(addr, size, stream)

    def _limit_of(self, block: Block, now: int) -> int:
        is_there = self.ends.get(block.ptr, now + 1) > now
        return self.limits.get(block.ptr, 0) if is_there else 0


def _to_misplaced(
    rows: Iterator[StepRow], places: Sequence[int], misplaced: list[StepRow]
) -> Iterator[StepRow]:
    # Ends after a request that was served elsewhere than recorded, and appends it to `misplaced`.
    for row in rows:
        yield row
        if row[0] == MALLOC and places[-1] != row[1]:
            misplaced.append(row)
            return


def _with_sizes(segment: SegmentState, sizes: Mapping[int, int]) -> SegmentState:
    if not any(block.address in sizes for block in segment.blocks):
        return segment
    blocks: list[BlockState] = []
    extra = 0  # bytes that the block before took from this one
    for block in segment.blocks:
        at, taken = block.address + extra, extra
        extra = sizes.get(block.address, block.size) - block.size
        blocks.append(replace(block, address=at, size=block.size - taken + extra))
    return replace(segment, blocks=tuple(blocks))
