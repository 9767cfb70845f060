"""Types for one request and the allocator's decision.

stepping.py observes and explains the requests; malloc_rules.py explains a malloc.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim._repr import Shown
from allocsim.core import TraceEntry, Witnessed
from allocsim.errors import OutOfMemoryError
from allocsim.state import SegmentState


@dataclass(frozen=True, slots=True)
class Request:
    """Call of a method of `CachingAllocator`.

    action: name of the method.  The other fields are its arguments:
        malloc: size, stream.
        free, and for recordings also request_free and complete_free: address.
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
    """Free block that the search of a malloc considered.

    verdict: result for this block: "taken"; "too small"; "larger" than the block taken; "same size,
        later" than the block taken in the order of the pool; or "refused" by a setting.
    """

    address: int
    size: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule that the allocator applied to a request.

    section: section of docs/concepts/allocator.md that explains the rule.
    text: how the rule applied to this request.
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
    rules: rules that the allocator applied, in order.
    candidates: free blocks that the search considered, smallest first.
    before, after: segments that changed, before and after the request.
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

    written: entries that the request added, each with the work of the allocator that added it, such
        as a garbage collection.
    stats_before, stats_after: memory_stats() before and after the request.
    before, after: segments before and after the request.
    """

    request: Request
    error: OutOfMemoryError | None
    written: tuple[Witnessed, ...]
    stats_before: dict[str, int]
    stats_after: dict[str, int]
    before: tuple[SegmentState, ...]
    after: tuple[SegmentState, ...]
