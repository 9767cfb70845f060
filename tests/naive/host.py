"""A second, slow implementation of the rules of pinned host memory (semantics 13).

Blocks are in one list and never leave it.  Free lists and the queues of pools are computed from the
blocks and from one list of waiting events.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.naive.table import Table, stream_hash

__all__ = ["NaiveHost", "HostOutOfMemory", "Refused"]

PAGE = 4096
MIB = 1 << 20
NAMES = {
    7: ("allocation", "allocated_bytes", "segment", "reserved_bytes"),
    10: ("active_requests", "active_bytes", "allocations", "allocated_bytes"),
}
COLUMNS = ("current", "peak", "allocated", "freed")


class HostOutOfMemory(Exception):  # noqa: N818
    """Refusal of the driver to pin memory."""


class Refused(Exception):  # noqa: N818
    """Free whose event no call could query."""


@dataclass(eq=False)
class Block:
    """Block of a pool; `state` is "used", "waiting", "free" or "gone"."""

    number: int
    size: int
    pool: int
    is_reserved: bool
    state: str = "used"
    streams: Table[None] = field(default_factory=lambda: Table(stream_hash(0)))
    waits: int = 0
    freed_at: int = 0
    is_captured: bool = False

    @property
    def bucket(self) -> int:
        return bucket(self.size)


def bucket(size: int) -> int:
    exponent = 0
    while 2**exponent < size:
        exponent += 1
    return exponent


class NaiveHost:
    """Allocator of pinned host memory of PyTorch 2.`minor`."""

    def __init__(self, conf: str, minor: int, host_memory: int) -> None:
        self.minor = minor
        self.host_memory = host_memory
        self.options: dict[str, str] = {}
        self.set(conf)
        self.blocks: list[Block] = []
        self.waiting: list[tuple[int, int, Block]] = []  # (stream, number of the event, block)
        self.issued: dict[int, int] = {}
        self.passed: dict[int, int] = {}
        self.cells: dict[tuple[str, int, int], list[int]] = {}
        self.calls = {"alloc": 0, "free": 0}
        self.trace: list[tuple[str, int, int, int]] = []
        self.clock = 0
        self.reserve: int | None = None  # free bytes; None before the first driver call
        self.has_thread = False
        self.capture: tuple[int, int] | None = None  # pool and stream
        self.uses: dict[int, int] = {}
        self.released: Table[None] = Table(lambda number: number)

    def set(self, conf: str) -> None:
        self.options |= dict(part.split(":") for part in conf.split(",") if part)

    def mebibytes(self, option: str) -> int | None:
        return int(self.options[option]) * MIB if option in self.options else None

    # -- calls ---------------------------------------------------------------------------

    def malloc(self, size: int) -> Block | None:
        if size == 0:
            return None
        is_private = self.capture is not None and self.minor >= 11
        pool = self.capture[0] if self.capture and is_private else 0
        in_background = self.options.get("pinned_use_background_threads") == "True"
        if pool or not in_background:
            self.process(pool)
        size = self.rounded(size)
        block = self.taken(size, pool)
        if block is None and in_background and self.minor <= 9:
            self.process_size(size)
            block = self.taken(size, pool)
        if block is None:
            self.has_thread |= in_background
            block = self.created(size, pool)
        block.is_captured = is_private
        self.note("alloc", block)
        self.poll_in_background()
        return block

    def free(self, block: Block) -> None:
        streams = list(block.streams)
        if streams and not block.is_captured and self.capture and self.capture[1] in streams:
            raise Refused
        self.note("free_requested", block)
        if not streams:
            if not 10 <= self.minor <= 12:
                self.count_free(block, block.size)
            self.complete(block)
            return
        block.state = "waiting"
        block.waits += len(streams)
        block.streams = Table(stream_hash(0))
        if not block.is_captured:
            for stream in streams:
                self.issued[stream] = self.issued.get(stream, 0) + 1
                self.waiting.append((stream, self.issued[stream], block))

    def record(self, block: Block, stream: int) -> None:
        block.streams.insert(stream, None)

    def synchronize(self, stream: int | None = None) -> None:
        for each in list(self.issued) if stream is None else [stream]:
            self.passed[each] = self.issued.get(each, 0)
        self.poll_in_background()

    def empty_cache(self) -> None:
        self.empty(0)
        for pool in list(self.released):
            self.empty(pool)
            if not any(block.pool == pool and block.state != "gone" for block in self.blocks):
                self.released.erase(pool)
                del self.uses[pool]
                if self.minor >= 15:
                    self.merge_statistics(pool)

    def begin(self, pool: int, stream: int) -> None:
        self.capture = pool, stream
        self.uses[pool] = self.uses.get(pool, 0) + 1

    def end(self) -> None:
        self.capture = None

    def release(self, pool: int) -> None:
        self.uses[pool] -= 1
        if self.minor >= 11 and self.uses[pool] == 0:
            self.released.insert(pool, None)

    # -- parts ---------------------------------------------------------------------------

    def rounded(self, size: int) -> int:
        for option in ("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"):
            limit = self.mebibytes(option)
            if limit is not None and size > limit:
                return size
        return int(2 ** bucket(size))

    def poll_in_background(self) -> None:
        if self.has_thread:
            self.process(0)

    def taken(self, size: int, pool: int) -> Block | None:
        """Return the block freed last in the bucket, from 2.14 on among those large enough."""
        free = [
            block
            for block in self.blocks
            if block.state == "free" and block.pool == pool and block.bucket == bucket(size)
        ]
        if self.minor >= 14:
            free = [block for block in free if block.size >= size]
        if not free:
            return None
        block = max(free, key=lambda block: block.freed_at)
        block.state = "used"
        self.count("active", block, 1)
        self.count("bytes", block, block.size if self.minor >= 14 else size)
        return block

    def created(self, size: int, pool: int) -> Block:
        if self.reserve is None:
            self.reserve = self.mebibytes("pinned_reserve_segment_size_mb") or 0
            self.calls["alloc"] += 1 if self.reserve else 0
        pages = -(-size // PAGE) * PAGE
        is_reserved = pages <= self.reserve
        if is_reserved:
            self.reserve -= pages
        elif size > self.host_memory:
            raise HostOutOfMemory
        else:
            self.calls["alloc"] += 1
        block = Block(len(self.blocks), size, pool, is_reserved)
        self.blocks.append(block)
        self.note("segment_alloc", block)
        for figure, amount in (("active", 1), ("bytes", size), ("owned", 1), ("held", size)):
            self.count(figure, block, amount)
        return block

    def process(self, pool: int) -> None:
        """Complete frees in the order of their events, up to the first that has not passed."""
        for entry in list(self.waiting):
            stream, number, block = entry
            if block.pool != pool:
                continue
            if self.passed.get(stream, 0) < number:
                return
            self.waiting.remove(entry)
            self.event_passed(block, -1)

    def process_size(self, size: int) -> None:
        """Complete the first free of a block of `size`; events looked at go to the end."""
        for _ in range(len(self.waiting) + 1):
            if not self.waiting:
                return
            stream, number, block = entry = self.waiting.pop(0)
            if block.size != size or self.passed.get(stream, 0) < number:
                self.waiting.append(entry)
            elif self.event_passed(block, size):
                return
        if self.waiting:
            self.waiting.append(self.waiting.pop(0))

    def event_passed(self, block: Block, polled: int) -> bool:
        block.waits -= 1
        if block.waits:
            return False
        self.count_free(block, polled if self.minor <= 12 else block.size)
        self.complete(block)
        return True

    def count_free(self, block: Block, size: int) -> None:
        self.count("active", block, -1)
        self.count("bytes", block, -size, is_fall=True)

    def complete(self, block: Block) -> None:
        self.note("free_completed", block)
        limit = self.mebibytes("pinned_max_cached_size_mb")
        if limit is not None and block.size > limit:
            self.destroy(block)
            return
        block.state = "free"
        self.clock += 1
        block.freed_at = self.clock

    def empty(self, pool: int) -> None:
        self.process(pool)
        free = [block for block in self.blocks if block.state == "free" and block.pool == pool]
        for block in sorted(free, key=lambda block: (block.bucket, block.freed_at)):
            self.destroy(block)

    def destroy(self, block: Block) -> None:
        block.state = "gone"
        self.calls["free"] += not block.is_reserved
        self.count("owned", block, -1)
        self.count("held", block, -block.size)
        self.note("segment_free", block)

    def note(self, action: str, block: Block) -> None:
        self.trace.append((action, block.number, block.size, block.pool))

    # -- statistics ----------------------------------------------------------------------

    def count(self, figure: str, block: Block, amount: int, *, is_fall: bool = False) -> None:
        """Change one figure of a bucket; blocks that the allocator owns have no buckets."""
        place = (0, 0)
        if figure in ("active", "bytes"):
            place = (block.pool if self.minor >= 15 else 0, block.bucket)
        cell = self.cells.setdefault((figure, *place), [0, 0, 0, 0])
        cell[0] += amount
        if is_fall or amount < 0:
            cell[3] -= amount
        else:
            cell[1] = max(cell[:2])
            cell[2] += amount

    def merge_statistics(self, pool: int) -> None:
        for (figure, home, number), cell in list(self.cells.items()):
            if home == pool and pool:
                total = self.cells.setdefault((figure, 0, number), [0, 0, 0, 0])
                self.cells[figure, 0, number] = [
                    sum(pair) for pair in zip(total, cell, strict=True)
                ]
                del self.cells[figure, home, number]

    def reset_peak(self) -> None:
        for cell in self.cells.values():
            cell[1] = cell[0]

    def reset_sums(self) -> None:
        for cell in self.cells.values():
            cell[2:] = [0, 0]
        self.calls = {"alloc": 0, "free": 0}

    def statistics(self) -> dict[str, int]:
        """Return torch.cuda.host_memory_stats() with the counts of the times only."""
        if self.minor < 7:
            return {}
        names = NAMES[10 if self.minor >= 10 else 7]
        flat = {}
        for figure, name in zip(("active", "bytes", "owned", "held"), names, strict=True):
            cells = [cell for key, cell in self.cells.items() if key[0] == figure]
            columns = zip(*cells, strict=True) if cells else [(0,)] * 4
            for column, values in zip(COLUMNS, columns, strict=True):
                flat[f"{name}.{column}"] = sum(values)
        flat["num_host_alloc"] = flat[f"{names[2]}.allocated"]
        flat["num_host_free"] = flat[f"{names[2]}.freed"]
        for call, count in self.calls.items():
            flat[f"host_{call}_time.count"] = count
        return flat
