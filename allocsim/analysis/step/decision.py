"""Value types for one request and the allocator's decision.

Nothing is computed here: stepping.py observes, and malloc_rules.py and rules.py explain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim._repr import Shown
from allocsim.core import TraceEntry, Witnessed
from allocsim.errors import OutOfMemoryError
from allocsim.state import SegmentState

__all__ = ["Candidate", "Decision", "Moved", "Observed", "Request", "Rule"]


@dataclass(frozen=True, slots=True)
class Request:
    """Call of an allocator's method.

    `action` is the name of the method.  The other fields are its arguments:
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
    """Free block of the request's pool and stream, with the verdict of the search.

    verdict: "taken", "too small", "larger", "same size, later" or "refused".
    """

    address: int
    size: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Applied rule, with the section of docs/allocator.md and how it applied."""

    name: str
    section: str
    text: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Statistic that changed, by its key in torch.cuda.memory_stats()."""

    key: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, repr=False)
class Decision(Shown):
    """Result of one request.

    address: address that a malloc returned, or None.
    error: text of the out-of-memory error, or None.
    rules: applied rules, in order.
    candidates: free blocks that the search considered, ascending.
    entries: entries that were added to the history.
    moved: statistics that changed.
    before, after: segments that changed, in both states.
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
        """Return the request, its result and the applied rules in one line."""
        where = "" if self.address is None else f" at {self.address:#x}"
        end = self.error.partition(".")[0] if self.error else ", ".join(r.name for r in self.rules)
        return f"{self.request.action}{where}: {end}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Yield the applied rules, and the error if there is one."""
        yield from ((rule.name, rule.text) for rule in self.rules)
        if self.error:
            yield "error", self.error


@dataclass(frozen=True, slots=True)
class Observed:
    """Observation of one request: the states before and after it, and the entries between."""

    request: Request
    error: OutOfMemoryError | None
    written: tuple[Witnessed, ...]
    stats_before: dict[str, int]
    stats_after: dict[str, int]
    before: tuple[SegmentState, ...]
    after: tuple[SegmentState, ...]
