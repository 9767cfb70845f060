"""One request and all that the allocator decided about it, as frozen values.

Rule: nothing is computed here.  stepping.py observes, malloc_rules.py and rules.py find the words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim.core import TraceEntry, Witnessed
from allocsim.display import Shown
from allocsim.errors import OutOfMemoryError
from allocsim.state import SegmentState

__all__ = ["Candidate", "Decision", "Moved", "Observed", "Request", "Rule"]


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked: `action` is the name of the allocator's method, the rest its arguments.

    malloc: size, stream.
    free, and for recordings also request_free and complete_free: address.
    record_stream: address, stream.
    synchronize: stream, None for all.
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
    """A free block of the request's pool and stream, as the search met it.

    verdict: "taken", "too small", "larger", "same size, later" or "refused".
    """

    address: int
    size: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule that was applied; section: of docs/allocator.md; text: how it was applied."""

    name: str
    section: str
    text: str


@dataclass(frozen=True, slots=True)
class Moved:
    """A statistic that changed, by its key in torch.cuda.memory_stats()."""

    key: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, repr=False)
class Decision(Shown):
    """The outcome of one request.

    address: what a malloc returned.
    error: the text of its out-of-memory error.
    rules: in the order in which they were applied.
    candidates: the free blocks that the search looked at, ascending.
    entries: added to the history.
    before, after: the segments that differ.
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
        """What was asked, what came of it, by which rules."""
        where = "" if self.address is None else f" at {self.address:#x}"
        end = self.error.partition(".")[0] if self.error else ", ".join(r.name for r in self.rules)
        return f"{self.request.action}{where}: {end}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """The rules as they were applied."""
        yield from ((rule.name, rule.text) for rule in self.rules)
        if self.error:
            yield "error", self.error


@dataclass(frozen=True, slots=True)
class Observed:
    """The raw material: two states, and the entries between them."""

    request: Request
    error: OutOfMemoryError | None
    written: tuple[Witnessed, ...]
    stats_before: dict[str, int]
    stats_after: dict[str, int]
    before: tuple[SegmentState, ...]
    after: tuple[SegmentState, ...]
