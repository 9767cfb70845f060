"""Compare the model with real PyTorch on many random scripts, and count the compared ops.

A script is a list of allocator calls, named ops (`script.py`).  The result depends on the seed, the
PyTorch releases and the settings, but not on the number of processes.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol

from allocsim.core import find_release
from allocsim.verify.comparison import Divergence, Real, judge, minimised
from allocsim.verify.generator import make_script
from allocsim.verify.real import RealAllocator
from allocsim.verify.script import Op, Script

KINDS = ("operation", "feature", "option", "release", "device", "script")
_OPERATIONS = {
    "a": "malloc",
    "f": "free",
    "r": "record_stream",
    "s": "synchronize a stream",
    "S": "synchronize all",
    "e": "empty_cache",
    "m": "set_per_process_memory_fraction",
    "c": "set_allocator_settings",
    "k": "reset_peak_memory_stats",
    "K": "reset_accumulated_memory_stats",
    "q": "host_memory_stats",
}
_SCOPES = {
    "b": "begin_allocate_to_pool",
    "e": "end_allocate_to_pool",
    "r": "release_pool",
    "v": "empty_cache of a pool",
    "l": "delete a MemPool",
}
_LIST = re.compile(r"\[[^]]*\]")
_RESET_BY_A_PARSE = (
    "max_split_size_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
)


class Tally:
    """Numbers of compared ops (allocator calls in a script), by the feature that they test.

    counts: dictionary from (kind, name), such as ("option", "expandable_segments"), to a number of
        ops; `KINDS` has the kinds.  For the kind "script", the value is a number of scripts.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.ops = 0

    def __iadd__(self, other: Tally) -> Tally:
        self.counts += other.counts
        self.ops += other.ops
        return self

    def rows(self, kind: str) -> list[tuple[str, int]]:
        rows = [(name, count) for (of, name), count in self.counts.items() if of == kind]
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {kind: dict(self.rows(kind)) for kind in KINDS}

    def add(self, script: Script, release: str, addresses: Sequence[int | None], end: str) -> None:
        """Count the ops of a compared script.

        release: PyTorch release on which the script ran.
        addresses: address that each request returned; None for a failed request.
        end: result of the comparison as text, such as "equal" (`Judgement.end`).
        """
        counts, ops = self.counts, script.ops
        self.ops += len(ops)
        counts["release", release] += len(ops)
        place = "pinned memory" if script.is_host else f"{script.address_policy} addresses"
        counts["device", place] += len(ops)
        counts["script", end] += 1
        for op in ops:
            name = _SCOPES[op[1]] if op[0] == "P" else _OPERATIONS[op[0]]
            counts["operation", name] += 1
        for name in _features(script, addresses):
            counts["feature", name] += 1
        for options in _options_in_force(script):
            for option in options or ("none",):
                counts["option", option] += 1


def _option_names(conf: str) -> set[str]:
    parts = (part.partition(":")[0].strip() for part in _LIST.sub("", conf).split(","))
    return {name for name in parts if name}


def _options_in_force(script: Script) -> Iterator[set[str]]:
    options = _option_names(script.conf)
    for op in script.ops:
        if op[0] == "c":
            options = (options - {*_RESET_BY_A_PARSE}) | _option_names(op[1])
        yield options


def _features(script: Script, addresses: Sequence[int | None]) -> Iterator[str]:
    place = _Place(script.conf)
    answers = iter(addresses)
    for op in script.ops:
        if op[0] == "a":
            place.recorded.discard(op[1])
            if next(answers, None) is None and op[2]:
                yield "malloc out of memory"
            yield from place.of_malloc()
        elif op[0] == "f" and op[1] in place.recorded:
            yield f"free that may wait, {place.where()}"
        elif op[0] == "r":
            place.recorded.add(op[1])
            yield f"record_stream {place.where()}"
        elif op[0] == "e" and place.open_scopes > 0:
            yield "empty_cache in a scope"
        elif op[0] == "P":
            place.open_scopes += {"b": 1, "e": -1}.get(op[1], 0)
            yield from () if script.is_host else _marks(op)
        elif op[0] == "c":
            place.set(op[1])


class _Place:
    def __init__(self, conf: str) -> None:
        self.open_scopes = 0
        self.recorded: set[object] = set()
        self.is_expandable = False
        self.set(conf)

    def set(self, conf: str) -> None:
        if "expandable_segments:" in conf:
            self.is_expandable = "expandable_segments:True" in conf

    def where(self) -> str:
        return "in a scope" if self.open_scopes > 0 else "outside scopes"

    def of_malloc(self) -> Iterator[str]:
        if self.is_expandable:
            yield f"malloc with expandable segments {self.where()}"
        if self.open_scopes > 0:
            yield "malloc in a scope" if self.open_scopes == 1 else "malloc in nested scopes"


def _marks(op: Op) -> Iterator[str]:
    marks = (*op[3:], 0, 0)[:2] if op[1] == "b" else (0, 0)
    if marks[0]:
        yield "pool marked no_split"
    if marks[1]:
        yield "pool marked use_on_oom"


_BATCH = 10
"""Number of scripts in one job of a worker process, which takes about a second."""

Progress = Callable[[int, int], None]


class Source(Protocol):
    """Supplier of the real allocator of one PyTorch release, and of random scripts for it.

    It must be picklable, since worker processes receive it.
    """

    @property
    def release(self) -> str:
        pass

    def open(self) -> Real:
        pass

    def script(self, real: Real, seed: int) -> Script:
        pass


@dataclass(frozen=True, slots=True)
class WheelSource:
    """Supplier of the allocator in a published PyTorch wheel, and of random scripts for it.

    `python -m allocsim.phantom fetch` must have stored the wheel in allocsim's cache.
    """

    release: str

    def open(self) -> Real:
        return RealAllocator(self.release)

    def script(self, real: Real, seed: int) -> Script:  # noqa: ARG002
        return make_script(seed, find_release(self.release))


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Options of a cross-check, which runs scripts on the model and on real PyTorch.

    sources: supplier of the real allocator and of scripts, for each PyTorch release to check.
    seed: seed of the first script; each further script has the next number.
    ops: least number of ops to compare for each release.
    conf: value of PYTORCH_CUDA_ALLOC_CONF for every script, without the ops that change settings;
        None for random values.
    jobs: number of worker processes.
    """

    sources: tuple[Source, ...]
    seed: int = 0
    ops: int = 100_000
    conf: str | None = None
    jobs: int = 1


@dataclass(slots=True)
class Report:
    """Result of a cross-check.

    tally: numbers of compared ops.
    seeds: dictionary from a PyTorch release to (first seed, last seed) of its scripts.
    divergence: first script with a difference, minimised; None if there is none.
    """

    tally: Tally = field(default_factory=Tally)
    seeds: dict[str, tuple[int, int]] = field(default_factory=dict)
    divergence: Divergence | None = None


def crosscheck(check: CrossCheck, progress: Progress | None = None) -> Report:
    """Run random scripts on the model and on real PyTorch, and compare the results."""
    report = Report()
    total = check.ops * len(check.sources)
    executor = ProcessPoolExecutor(check.jobs) if check.jobs > 1 else None
    with executor or nullcontext():
        for number, source in enumerate(check.sources, start=1):
            wanted = report.tally.ops + check.ops
            for batch in _batches(check, source, executor):
                report.tally += batch.tally
                report.seeds[source.release] = (check.seed, batch.last_seed)
                if progress is not None:
                    progress(min(report.tally.ops, number * check.ops), total)
                if batch.divergence is not None:
                    report.divergence = _shortened(source.open(), batch.divergence)
                    return report
                if report.tally.ops >= wanted:
                    break
    return report


@dataclass(frozen=True, slots=True)
class _Batch:
    tally: Tally
    last_seed: int
    divergence: Divergence | None


def _batches(check: CrossCheck, source: Source, executor: Executor | None) -> Iterator[_Batch]:
    seeds = count(check.seed, _BATCH)
    if executor is None:
        yield from (_run_batch(check, source, first) for first in seeds)
        return
    ahead: deque[Future[_Batch]] = deque()
    try:
        while True:
            # Results are taken in order of their seeds, so the number of jobs does not matter.
            while len(ahead) < 2 * check.jobs:
                ahead.append(executor.submit(_run_batch, check, source, next(seeds)))
            yield ahead.popleft().result()
    finally:
        for future in ahead:
            future.cancel()


def _run_batch(check: CrossCheck, source: Source, first: int) -> _Batch:
    real, tally = source.open(), Tally()
    for seed in range(first, first + _BATCH):
        script = source.script(real, seed)
        if check.conf is not None:
            ops = [op for op in script.ops if op[0] != "c"]
            script = replace(script, ops=ops, conf=check.conf)
        verdict = judge(real, script)
        tally.add(verdict.script, source.release, verdict.addresses, verdict.end)
        if verdict.divergence is not None:
            return _Batch(tally, seed, verdict.divergence)
    return _Batch(tally, first + _BATCH - 1, None)


def _shortened(real: Real, found: Divergence) -> Divergence:
    return minimised(found, lambda script: judge(real, script).divergence)
