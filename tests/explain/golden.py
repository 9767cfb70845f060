"""Out-of-memory errors of the golden cases, each with the state after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.analysis.explain.state_at_error import StateAtError
from tests.golden import cases, runner

__all__ = ["GoldenOom", "golden_ooms", "replayed"]


@dataclass(frozen=True, slots=True)
class GoldenOom:
    """One error, with the index of the failing op and the free bytes that PyTorch recorded."""

    case: cases.Case
    release: str
    index: int
    moment: StateAtError
    free_bytes: int

    @property
    def op(self) -> list[Any]:
        return list(self.case["ops"][self.index])

    def __str__(self) -> str:
        return f"{self.case['name']} on {self.release}, op {self.index}"


def golden_ooms(
    family: str, step: int = 1, most: int | None = None, offset: int = 0
) -> Iterator[GoldenOom]:
    """Yield the errors of every `step`-th result of a family, at most `most` of each.

    A request that a setting rejects before any attempt has no entry in the trace, and none here.
    """
    pairs = [(case, release) for case in cases.load(family) for release in cases.releases(case)]
    for case, release in pairs[offset % max(len(pairs), 1) :: step]:
        result = dict(cases.results(case))[release]
        recorded = [entry[1] for entry in result["trace"] if entry[0] == "oom"]
        yield from _ooms_of(case, release, recorded[:most])


def _ooms_of(case: cases.Case, release: str, recorded: list[int]) -> Iterator[GoldenOom]:
    if not recorded:
        return
    watch = _Watch(case, release)
    script = runner.Script(watch)
    for index, op in enumerate(case["ops"]):
        watch.moment = None
        script.play(op)
        if watch.moment is not None:
            yield GoldenOom(case, release, index, watch.moment, recorded.pop(0))
            if not recorded:
                return


class _Watch(CachingAllocator):
    """Model that stores the state after an error."""

    def __init__(self, case: cases.Case, release: str) -> None:
        self.moment: StateAtError | None = None
        super().__init__(
            case["device_memory"], case["conf"], release, address_policy=case["address_policy"]
        )

    def malloc(self, size: int, stream: int = 0) -> int | None:
        counted = self.heap.stats.num_ooms
        try:
            return super().malloc(size, stream)
        except OutOfMemoryError as error:
            if self.heap.stats.num_ooms > counted:
                self.moment = StateAtError.of(self, error.rounded_bytes, stream)
            raise


def replayed(oom: GoldenOom) -> CachingAllocator:
    """Replay the ops again and return the allocator after the failing op."""
    case = oom.case
    allocator = CachingAllocator(
        case["device_memory"], case["conf"], oom.release, address_policy=case["address_policy"]
    )
    script = runner.Script(allocator)
    for op in case["ops"][: oom.index + 1]:
        script.play(op)
    return allocator
