"""Types for requests and decisions, and the explanation of the decision about a malloc.

Two free blocks are never adjacent, so a free block directly behind the block that a malloc returned
is the rest of a split (semantics.md, section 1.7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from allocsim._repr import Shown
from allocsim.core import (
    MIN_BLOCK_SIZE,
    SMALL_SIZE,
    UNLIMITED,
    Block,
    CachingAllocator,
    TraceEntry,
    Witnessed,
    Work,
    allocated_block,
)
from allocsim.errors import OutOfMemoryError
from allocsim.state import DEFAULT_POOL, INACTIVE, PoolId, SegmentState
from allocsim.units import format_size, round_up


@dataclass(frozen=True, slots=True)
class Request:
    """Call of a method of `CachingAllocator`.

    action: name of the method.  Each method uses some of the other fields as its arguments:
        malloc: size, stream.
        free; in recordings also request_free and complete_free: address.
        record_stream: address, stream.
        synchronize: stream; None for all streams.
        begin_allocate_to_pool, end_allocate_to_pool, release_pool: pool.
        set_per_process_memory_fraction, set_allocator_settings: value.
    """

    action: str
    size: int = 0
    address: int | None = None
    stream: int | None = 0
    pool: int = 0
    value: float | str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Free block that a malloc considered when it searched the pool.

    verdict: "taken"; "too small"; "larger" (than the block taken); "same size, later" (behind the
        block taken, in the order of the pool); or "refused" (by a setting).
    """

    address: int
    size: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule that the allocator applied to a request.

    name: name of the rule, such as "best fit".
    section: heading in docs/concepts/allocator.md under which the rule is explained.
    text: effect of the rule on this request, with its sizes.
    """

    name: str
    section: str
    text: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Statistic that a request changed, with its values before and after the request.

    key: name of the statistic in torch.cuda.memory_stats().
    """

    key: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, repr=False)
class Decision(Shown):
    """Decision of the allocator about one request.

    address: address that a malloc returned; None for other requests and after an error.
    error: text of the out-of-memory error; None if there was none.
    candidates: free blocks that the search considered, smallest first.
    rules: rules that the allocator applied, in order.
    entries: entries that the request added to the history.
    moved: statistics that the request changed.
    before, after: states of the changed segments before and after the request.
    """

    request: Request
    address: int | None
    error: str | None
    rules: tuple[Rule, ...]
    candidates: tuple[Candidate, ...]
    entries: tuple[TraceEntry, ...]
    moved: tuple[Moved, ...]
    before: tuple[SegmentState, ...]
    after: tuple[SegmentState, ...]

    def headline(self) -> str:
        where = "" if self.address is None else f" at {self.address:#x}"
        end = self.error.partition(".")[0] if self.error else ", ".join(r.name for r in self.rules)
        return f"{self.request.action}{where}: {end}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield from ((rule.name, rule.text) for rule in self.rules)
        if self.error:
            yield "error", self.error


@dataclass(frozen=True, slots=True)
class Observed:
    """Changes that one request made to the allocator.

    error: out-of-memory error of the request; None if there was none.
    written: entries that the request added to the history, with the cause of each.
    before, after: states of all segments before and after the request.
    """

    request: Request
    error: OutOfMemoryError | None
    written: tuple[Witnessed, ...]
    stats_before: dict[str, int]
    stats_after: dict[str, int]
    before: tuple[SegmentState, ...]
    after: tuple[SegmentState, ...]


ROUNDING = "Rounding, pools, segment sizes"
BEST_FIT = "Best fit, and ties"
SPLIT = "Split and merge"
MISS = "What happens on a miss"
STREAMS = "Streams, record_stream, events"
COLLECTION = "Limits and garbage collection"
MAX_SPLIT = "max_split_size_mb and max_non_split_rounding_mb"
EXPANDABLE = "Expandable segments"
POOLS = "Private pools"

EXPLAINED: dict[str, str] = {
    "roundup_power2_divisions": ROUNDING,
    "large_segment_size_mb": ROUNDING,
    "max_split_size_mb": MAX_SPLIT,
    "max_non_split_rounding_mb": MAX_SPLIT,
    "garbage_collection_threshold": COLLECTION,
    "per_process_memory_fraction": COLLECTION,
    "throw_on_cudamalloc_oom": COLLECTION,
    "expandable_segments": EXPANDABLE,
    "expandable_segments_reserve": EXPANDABLE,
    "graph_capture_record_stream_reuse": "",
}
"""Dictionary from an allocator option to its heading in docs/concepts/allocator.md.

The heading is "" for an option whose effect a single request cannot show.
"""

_AGAIN = "wait for every pending free, release all wholly free segments, and call the driver again"
_RETRY = Rule("retry", MISS, _AGAIN)


def explain_malloc(
    allocator: CachingAllocator, seen: Observed
) -> tuple[list[Rule], list[Candidate]]:
    if seen.request.size == 0:
        return [Rule("nothing asked", ROUNDING, "0 bytes need no block; the address is None")], []
    malloc = _Malloc(allocator, seen)
    candidates = malloc.at_hit() if malloc.is_hit else malloc.at_miss()
    return [*malloc.rules(candidates)], candidates


class _Malloc:
    def __init__(self, allocator: CachingAllocator, seen: Observed) -> None:
        self.seen = seen
        self.allocator = allocator
        self.config = allocator.config
        self.size, self.stream = seen.request.size, seen.request.stream or 0
        error = seen.error
        self.rounded = error.rounded_bytes if error else self.config.round_size(self.size)
        self.tried = self.config.segment_size(self.rounded)
        made = [w.entry for w in seen.written if w.entry.action == "alloc"]
        self.block: Block | None = allocated_block(allocator, made[0].address) if made else None
        pools = [w.entry.pool_id for w in seen.written if w.entry.action in ("alloc", "oom")]
        self.pool_id: PoolId = pools[0] if pools else DEFAULT_POOL
        self.is_small = self.rounded <= SMALL_SIZE
        self.is_hit = self.block is not None and all(
            w.work in (Work.REQUEST, Work.POLL) for w in seen.written
        )

    @property
    def rest_of_split(self) -> Block | None:
        following = self.block.next if self.block is not None else None
        return following if following is not None and following.key else None  # free: has a key

    @property
    def taken(self) -> int:
        assert self.block is not None
        return self.block.size + (self.rest_of_split.size if self.rest_of_split is not None else 0)

    def at_hit(self) -> list[Candidate]:
        block, tail = self.block, self.rest_of_split
        assert block is not None
        pool = block.pool
        free = pool.of(self.stream).blocks
        ranked = [(b.key, b.ptr, b.size) for b in free if b is not tail]
        taken = pool.layout.key(self.taken, block.rank + block.ptr)
        ranked = sorted([*ranked, (taken, block.ptr, self.taken)])
        return [Candidate(ptr, size, self._verdict(key, size, taken)) for key, ptr, size in ranked]

    def _verdict(self, key: int, size: int, taken: int) -> str:
        if key == taken:
            return "taken"
        if size < self.rounded:
            return "too small"
        if key < taken:
            return "refused"
        return "same size, later" if size == self.taken else "larger"

    def at_miss(self) -> list[Candidate]:
        free = sorted(
            (block.size, block.address)
            for segment in self.seen.before
            if (segment.stream, segment.is_small) == (self.stream, self.is_small)
            and segment.pool_id == self.pool_id
            for block in segment.blocks
            if block.state == INACTIVE
        )
        return [
            Candidate(address, size, "too small" if size < self.rounded else "refused")
            for size, address in free
        ]

    def rules(self, candidates: list[Candidate]) -> Iterator[Rule]:
        yield Rule("rounding", ROUNDING, self._rounding())
        yield self._pool()
        polled = [w for w in self.seen.written if w.work is Work.POLL]
        if polled:
            yield Rule("events", STREAMS, f"{_freed(polled)}: their streams have finished")
        if self.is_hit:
            yield Rule("best fit", BEST_FIT, self._best_fit(candidates))
        else:
            yield self._no_fit(candidates)
            yield from self._attempts()
        if self.block is not None:
            yield self._split()

    def _rounding(self) -> str:
        size, rounded = self.size, self.rounded
        text = f"{size:,} -> {rounded:,} bytes"
        if rounded != round_up(size, MIN_BLOCK_SIZE):
            steps = self.config.divisions_of(size)
            return f"{text}: roundup_power2_divisions, {steps} steps between two powers of two"
        if size == rounded:
            return f"{text}: already a multiple of {MIN_BLOCK_SIZE}"
        if size < MIN_BLOCK_SIZE:
            return f"{text}: the smallest block has {MIN_BLOCK_SIZE}"
        return f"{text}: up to the next multiple of {MIN_BLOCK_SIZE}"

    def _pool(self) -> Rule:
        small, side = ("small", "up to") if self.is_small else ("large", "above")
        text = f"{small} pool: {side} {SMALL_SIZE:,} bytes"
        if self.pool_id != DEFAULT_POOL:
            return Rule("pool", POOLS, f"{text}, of private pool {self.pool_id}")
        return Rule("pool", ROUNDING, text)

    def _best_fit(self, candidates: list[Candidate]) -> str:
        counts = Counter(c.verdict for c in candidates)
        larger = next((c for c in candidates if c.verdict == "larger"), None)
        text = f"{len(candidates):,} free here"
        for verdict in ("too small", "refused"):
            text += f", {counts[verdict]:,} {verdict}" if counts[verdict] else ""
        text += f"; the smallest suitable block has {self.taken:,} bytes"
        if ties := counts["same size, later"]:
            text += f", {ties:,} later in the order have the same size"
        return text + (f"; the next larger has {larger.size:,}" if larger else "")

    def _no_fit(self, candidates: list[Candidate]) -> Rule:
        if refused := [c for c in candidates if c.verdict == "refused"]:
            return self._refused(refused[0])
        if not candidates:
            return Rule("no fit", BEST_FIT, "no block is free in this pool on this stream")
        text = f"{len(candidates):,} free here, the largest has {candidates[-1].size:,} bytes"
        return Rule("no fit", BEST_FIT, f"{text}: too small")

    def _refused(self, candidate: Candidate) -> Rule:
        # The search ends at a block that a setting refuses (semantics.md, section 1.6).
        size, limit = f"{candidate.size:,} bytes fit, but", self.config.max_split_size
        if limit != UNLIMITED and self.rounded < limit <= candidate.size:
            text = f"{size} a block of max_split_size_mb or more serves no smaller request"
            return _by("max_split_size_mb", "refused", text)
        if limit != UNLIMITED and self.rounded >= limit:
            waste = self.config.max_non_split_rounding
            text = f"{size} {candidate.size - self.rounded:,} would be wasted, and "
            text += f"max_non_split_rounding_mb allows less than {waste:,}"
            return _by("max_non_split_rounding_mb", "refused", text)
        return _by("expandable_segments", "refused", f"{size} the request may not use them")

    def _split(self) -> Rule:
        assert self.block is not None
        rest = self.taken - self.rounded
        whole = f"{self.taken:,} - {self.rounded:,} = {rest:,} bytes"
        if rest == 0:
            return Rule("no split", SPLIT, f"{self.taken:,} bytes fit exactly")
        pool = self.block.pool
        cuts_any = pool.is_small or self.config.expandable_segments
        least = MIN_BLOCK_SIZE if cuts_any else pool.least_rest
        needs = f"at least {least:,}" if cuts_any else f"more than {least - 1:,}"
        if self.rest_of_split is not None:
            return Rule("split", SPLIT, f"{whole} are cut off and stay free: {needs}")
        if rest < least:
            return Rule("no split", SPLIT, f"{whole} are not {needs}: the block stays whole")
        if self.rounded >= self.config.max_split_size:
            text = "requests of max_split_size_mb or more do not split a block"
            return _by("max_split_size_mb", "no split", f"{whole} would be left, but {text}")
        return Rule("no split", POOLS, f"{whole} would be left, but this pool does not split")

    def _attempts(self) -> Iterator[Rule]:
        is_refused = is_retried = False
        for work, group in groupby(self.seen.written, key=lambda w: w.work):
            written = list(group)
            if work in (Work.RELEASE_OVERSIZE, Work.WAIT, Work.RELEASE_CACHED) and not is_refused:
                is_refused = True
                yield self._refusal(written[0].reserved, written[0].device_free)
            if work in (Work.WAIT, Work.RELEASE_CACHED) and not is_retried:
                is_retried = True
                yield _RETRY
            if work not in (Work.REQUEST, Work.POLL):
                yield self._attempt(work, written)
        reserved, free = self.allocator.reserved_bytes, self.allocator.device.free
        key = "num_alloc_retries"
        if self.seen.stats_after[key] > self.seen.stats_before[key] and not is_retried:
            yield self._refusal(reserved, free)
            yield _RETRY
        if self.seen.error is not None:
            yield self._refusal(reserved, free)
            yield Rule("out of memory", MISS, "every attempt failed")
        elif not any(w.work is Work.DRIVER for w in self.seen.written):
            owner = self.block.pool.owner if self.block is not None else None
            if owner is not None:
                yield Rule("use_on_oom", POOLS, f"a free block of pool {owner.id} serves it")

    def _attempt(self, work: Work, written: list[Witnessed]) -> Rule:
        if work is Work.GARBAGE_COLLECTION:
            text = f"{_released(written)}: those that were idle longest"
            return _by("garbage_collection_threshold", "collection", text)
        if work is Work.RELEASE_OVERSIZE:
            return _by("max_split_size_mb", "oversize", f"{_released(written)}, of this stream")
        if work is Work.WAIT:
            return Rule("wait", STREAMS, f"{_freed(written)} after a wait for every event")
        if work is Work.RELEASE_CACHED:
            return Rule("release all", MISS, f"{_released(written)}: all that were wholly free")
        sizes = sum(w.entry.size for w in written)
        if written[0].entry.action == "segment_map":
            ranges = "one range" if len(written) == 1 else f"{len(written)} ranges"
            text = f"{sizes:,} bytes mapped in {ranges} of whole handles"
            return _by("expandable_segments", "mapping", text)
        return Rule("cudaMalloc", ROUNDING, f"a new segment of {sizes:,} bytes: {self._segment()}")

    def _segment(self) -> str:
        if self.is_small:
            return "the size of every segment of the small pool"
        if self.tried == self.config.large_segment_size and self.rounded < self.tried:
            return "large requests below 10 MiB share it"
        return "the request rounded up to 2 MiB"

    def _refusal(self, reserved: int, free: int) -> Rule:
        wanted, limit = format_size(self.tried), self.allocator.memory_limit
        if limit is not None and reserved + self.tried > limit:
            text = f"{format_size(reserved)} reserved plus {wanted} exceed the limit of "
            return _by("per_process_memory_fraction", "limit", f"{text}{format_size(limit)}")
        call = "mapping" if self.config.expandable_segments else "cudaMalloc"
        text = f"refused: {wanted} requested, {format_size(free)} free on the device"
        return Rule(call, MISS, text)


def _by(option: str, name: str, text: str) -> Rule:
    return Rule(name, EXPLAINED[option], text)


def _released(written: list[Witnessed]) -> str:
    given = [w.entry.size for w in written if w.entry.action != "free_completed"]
    noun = "segment" if len(given) == 1 else "segments"
    return f"{len(given):,} {noun} with {sum(given):,} bytes released to the driver"


def _freed(written: list[Witnessed]) -> str:
    noun = "pending free completes" if len(written) == 1 else "pending frees complete"
    return f"{len(written):,} {noun}"
