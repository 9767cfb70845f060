"""Choices of a what-if replay: its setting, and its start state if the recording starts mid-run.

A conf is an option string of PYTORCH_CUDA_ALLOC_CONF; a memory fraction limits reserved memory.
PyTorch 2.10 and later read the fraction from the conf.  Under earlier versions the program has to
call `torch.cuda.set_per_process_memory_fraction`.

The start state is the memory before the first step.  A what-if can start with the recorded
segments, although the other setting might have produced other sizes and splits.  Or it can start
with an empty allocator and first request all blocks that were live at the start of the recording;
then the cached memory is missing.  Both are inexact; docs/evidence/fidelity.md gives the errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import groupby

from allocsim.core import (
    RELEASES,
    AllocatorConfig,
    Release,
    ReplayAllocator,
    RequestedFree,
    find_release,
    parse_conf,
)
from allocsim.errors import ConfigError, OutOfMemoryError
from allocsim.state import DEFAULT_POOL, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import format_size

IN_STRING = "per_process_memory_fraction"


@dataclass(frozen=True, slots=True)
class Setting:
    """Option string of PYTORCH_CUDA_ALLOC_CONF (`conf`), and memory fraction set by a call.

    call_fraction: argument of set_per_process_memory_fraction; None without a call.
    """

    conf: str
    call_fraction: float | None = None

    def config(self, release: Release) -> AllocatorConfig:
        return _config(self.conf, release.version)

    def fraction(self, release: Release) -> float | None:
        if self.call_fraction is not None:
            return self.call_fraction
        fraction = self.config(release).per_process_memory_fraction
        return fraction if fraction < 1.0 else None

    @property
    def n_options(self) -> int:
        return sum(1 for part in self.conf.split(",") if ":" in part) + bool(self.call_fraction)

    @property
    def simplicity(self) -> tuple[int, str]:
        """Sort key of settings with equal results: the simplest setting has the lowest key."""
        return self.n_options, self.conf

    def __str__(self) -> str:
        name = self.conf or "(defaults)"
        if self.call_fraction is not None:
            name += f" and a memory fraction of {self.call_fraction:g}"
        return name


@lru_cache(maxsize=1024)
def _config(conf: str, version: str) -> AllocatorConfig:
    # Cached, because a sweep parses each conf several times.
    return parse_conf(conf, find_release(version))


def in_option_string(release: Release) -> bool:
    return IN_STRING in release.options


def releases_needed(conf: str, release: Release, possible: Sequence[str]) -> str | None:
    """Return text such as "PyTorch 2.11 or later": the releases that read `conf` as `release` does.

    Returns None if all `possible` releases read it so.

    conf: option string of PYTORCH_CUDA_ALLOC_CONF.
    """
    if all(_reads_alike(conf, release, version) for version in possible):
        return None
    # Extend the range from `release` in both directions while the meaning is the same.
    versions = list(RELEASES)
    first = last = versions.index(release.version)
    while first > 0 and _reads_alike(conf, release, versions[first - 1]):
        first -= 1
    while last + 1 < len(versions) and _reads_alike(conf, release, versions[last + 1]):
        last += 1
    if last + 1 == len(versions):
        return f"PyTorch {versions[first]} or later"
    if first == last:
        return f"PyTorch {versions[first]}"
    return f"PyTorch {versions[first]} to {versions[last]}"


def _reads_alike(conf: str, release: Release, version: str) -> bool:
    try:
        return str(_config(conf, version)) == str(_config(conf, release.version))
    except ConfigError:
        return False


class Start(StrEnum):
    """State of the allocator at the start of a replay, if the recording starts mid-run."""

    KEPT = "kept"
    """The recorded segments with their live and free blocks, unchanged."""

    REALLOCATED = "anew"
    """Segments that result if an empty allocator serves requests for all recorded live blocks."""


@dataclass(frozen=True, slots=True)
class StartPeaks:
    """Peak reserved bytes of a what-if (replay under another setting) from each start state."""

    shown: Start
    """Start state of the replay whose results are reported."""
    kept: int | None
    """Peak of the replay that starts with the recorded segments; None if it does not complete."""
    anew: int | None
    """Peak of the replay that starts empty and first requests the blocks that were live when the
    recording began; None if it does not complete."""

    @property
    def low(self) -> int:
        return min(peak for peak in (self.kept, self.anew) if peak is not None)

    @property
    def high(self) -> int:
        return max(peak for peak in (self.kept, self.anew) if peak is not None)


@dataclass(frozen=True, slots=True)
class _Group:
    pool_id: tuple[int, int]
    stream: int
    segments: tuple[SegmentState, ...]

    def blocks(self) -> Iterator[BlockState]:
        for segment in self.segments:
            yield from (block for block in segment.blocks if block.state != INACTIVE)


def has_live_blocks(segments: Sequence[SegmentState]) -> bool:
    return any(not segment.is_idle for segment in segments)


def live_requests(segments: Sequence[SegmentState]) -> set[int]:
    blocks = (block for segment in segments for block in segment.blocks)
    return {_request_of(block) for block in blocks if block.state != INACTIVE}


def _request_of(block: BlockState) -> int:
    return block.requested_size or block.size  # old releases do not write requested_size


def allocate_live_blocks(
    allocator: ReplayAllocator, segments: Sequence[SegmentState]
) -> dict[int, RequestedFree]:
    """Request the live blocks of the recorded `segments` from `allocator`.

    Afterwards, peaks, accumulated statistics and the number of driver calls are reset.

    Some blocks were freed before the recording began, while other streams still used them.  Returns
    a dictionary from their recorded addresses to their frees, which the replay completes later.
    """
    names: list[tuple[int, str]] = []
    for group in _groups(segments):
        is_private = group.pool_id != DEFAULT_POOL
        if is_private:
            allocator.begin_allocate_to_pool(group.pool_id, stream=group.stream)
        for block in group.blocks():
            _request(allocator, block, group.stream)
            names.append((block.address, block.state))
        if is_private:
            allocator.end_allocate_to_pool(group.pool_id)
    # Frees come last, so that no request reuses a block with a pending free.
    waiting = {}
    for name, state in names:
        if state == PENDING:
            ptr = allocator.take_name(name)
            assert ptr is not None
            waiting[name] = allocator.request_free(ptr)
    allocator.statistics()
    allocator.reset_accumulated_memory_stats()
    allocator.reset_peak_memory_stats()
    allocator.take_history()
    allocator.device.calls.clear()
    return waiting


def _groups(segments: Sequence[SegmentState]) -> Iterator[_Group]:
    def owner(segment: SegmentState) -> tuple[tuple[int, int], int]:
        return segment.pool_id, segment.stream

    ordered = sorted(segments, key=lambda segment: (owner(segment), segment.address))
    for (pool_id, stream), group in groupby(ordered, key=owner):
        yield _Group(pool_id, stream, tuple(group))


def _request(allocator: ReplayAllocator, block: BlockState, stream: int) -> None:
    try:
        ptr = allocator.malloc(_request_of(block), stream)
    except OutOfMemoryError:
        raise ConfigError(
            f"device memory {format_size(allocator.device.total)} cannot hold the blocks in use "
            "before the first entry when they are allocated again"
        ) from None
    assert ptr is not None
    allocator.give_name(ptr, block.address)
