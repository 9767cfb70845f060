"""Explanations without a replay, for snapshots without entries and for pinned host memory.

For a snapshot, a simulated allocator in the recorded state receives one request.  The result shows
whether the request succeeds and which live blocks prevent it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from allocsim._repr import Shown
from allocsim.analysis.explain.cause import Figures
from allocsim.analysis.explain.shortage import Blocker, Findings, findings_of, most_specific_cause
from allocsim.analysis.explain.state_at_error import StateAtError
from allocsim.core import CachingAllocator, finds_free_block
from allocsim.errors import OutOfMemoryError
from allocsim.host import Growth, GrowthCause, HostCourse, follow
from allocsim.metrics import code_of
from allocsim.ownership import Whose, is_python
from allocsim.recording import Recording, Trace
from allocsim.replaying import StateSource, state_source
from allocsim.units import format_size


@dataclass(frozen=True, slots=True)
class Refusal:
    """Explanation of a request that fails.

    rounded_bytes: size of the request after rounding.
    tried_bytes: size of the segment that the request needs from the driver.
    cause, figures: cause of the failure, and the sizes that decide it.
    findings: uses of the device's memory.
    blockers: live blocks to free so that the request succeeds, largest first, each with the code
        that requested it.
    """

    rounded_bytes: int
    tried_bytes: int
    cause: str
    figures: Figures
    findings: Findings
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True, repr=False)
class StateExplanation(Shown):
    """Result of one request on the default stream of one device.

    source: state of the device before the request.
    served: source of the memory: "cached" for a free block, "driver" for a new segment, "retry" for
        a new segment after cached segments returned to the driver; "" if the request fails.
    largest_request_bytes: largest request that would succeed.
    refusal: explanation of a failure; None if the request succeeds.
    is_asked: True if the user gave the request; False if it is the smallest request that fails.
    """

    path: str
    source: StateSource
    requested_bytes: int
    served: str
    largest_request_bytes: int
    refusal: Refusal | None
    is_asked: bool = True

    def headline(self) -> str:
        asked = format_size(self.requested_bytes)
        if self.refusal is None:
            return f"{asked}: answered ({self.served})"
        largest = format_size(self.largest_request_bytes)
        return f"{asked}: refused, {self.refusal.cause}; {largest} would be answered"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield "largest request", format_size(self.largest_request_bytes)
        if self.refusal is not None:
            blockers = self.refusal.blockers
            size = format_size(sum(block.size for block in blockers))
            yield "in the way", f"{len(blockers):,} live blocks, {size}"


def explain_state(
    recording: Recording,
    trace: Trace,
    request: int | None = None,
    conf: str | None = None,
    *,
    device_memory: int | None = None,
    torch_version: str | None = None,
) -> StateExplanation:
    """Send one request to a simulated allocator in the state of a snapshot; return the result.

    request: bytes of the request; None for the smallest request that fails.
    conf: PYTORCH_CUDA_ALLOC_CONF; None for the recorded value.
    device_memory: bytes of the device; None if unknown, and then no device memory is free.
    torch_version: PyTorch release to model; None for the recorded release.
    Raises RecordingError for an inconsistent state, and ConfigError for settings that PyTorch
    refuses or a device that is smaller than its segments.
    """
    source = state_source(
        recording, trace, conf, device_memory=device_memory, torch_version=torch_version
    )
    largest = source.largest_request()
    is_asked = request is not None
    request = largest + 1 if request is None else request
    gpu = source.allocator()
    served = "cached" if finds_free_block(gpu, request, 0) else ""
    refusal = None
    try:
        gpu.malloc(request)
        served = served or ("retry" if gpu.calls.retries else "driver")
    except OutOfMemoryError as error:
        refusal = _refusal(gpu, error, source, trace)
    return StateExplanation(
        path=recording.path,
        source=source,
        requested_bytes=request,
        served=served,
        largest_request_bytes=largest,
        refusal=refusal,
        is_asked=is_asked,
    )


def _refusal(
    gpu: CachingAllocator, error: OutOfMemoryError, source: StateSource, trace: Trace
) -> Refusal:
    findings = findings_of(StateAtError.of(gpu, error.rounded_bytes, 0))
    figures = Figures(
        tried_bytes=error.tried_bytes or error.rounded_bytes,
        total_bytes=None if source.is_taken_full else source.device_memory,
        allocated_bytes=gpu.allocated_bytes,
        reserved_bytes=gpu.reserved_bytes,
        idle_bytes=gpu.reserved_bytes - gpu.allocated_bytes,
        free_bytes=gpu.device.free,
        limit_bytes=gpu.memory_limit,
    )
    return Refusal(
        rounded_bytes=error.rounded_bytes,
        tried_bytes=error.tried_bytes,
        cause=most_specific_cause(figures, findings),
        figures=figures,
        findings=findings,
        blockers=_blockers(findings, trace),
    )


def _blockers(findings: Findings, trace: Trace) -> tuple[Blocker, ...]:
    if findings.blockers is None:
        return ()
    frames = {block.address: block.frames for s in trace.segments for block in s.blocks}
    found = []
    for block in sorted(findings.blockers.blocks, key=lambda block: (-block.size, block.address)):
        code = code_of(trace.frame_table.stack(frames[block.address]))
        found.append(Blocker(block.address, block.size, block.requested_size, code=code))
    return tuple(found)


_ADVICE = {
    GrowthCause.WAITING: (
        "copies were slower than the frees: synchronize the stream before the next batch, or "
        "keep fewer batches in flight"
    ),
    GrowthCause.IN_USE: (
        "the program holds more pinned blocks at once: reuse buffers, or lower prefetch_factor "
        "and num_workers of the DataLoader"
    ),
    GrowthCause.TOO_SMALL: (
        "unrounded sizes are rarely reused: raise pinned_max_round_threshold_mb"
    ),
    GrowthCause.FIRST: "sizes are rounded to a power of two: pad batches to fewer different sizes",
}
_MUCH = 0.25
"""Least share of the newly pinned bytes with which a cause of growth gets advice.

Cached pinned memory gets advice if, at the last entry, it exceeds this share of the pinned peak.
"""


@dataclass(frozen=True, slots=True)
class HostLine:
    line: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class HostExplanation:
    """Reasons why the pinned memory of a recording grew, with the bytes of newly pinned blocks.

    course: history of pinned memory over the recording.
    causes: dictionary from each cause to the newly pinned bytes.
    lines: newly pinned bytes for each line of the program.
    sizes: dictionary from each block size to the newly pinned bytes.
    advice: advice on how to pin less memory, as sentences.
    """

    path: str
    course: HostCourse
    causes: dict[GrowthCause, int]
    lines: tuple[HostLine, ...]
    sizes: dict[int, int]
    advice: tuple[str, ...]


def explain_host(path: str, trace: Trace) -> HostExplanation:
    course = follow(trace)
    causes: Counter[GrowthCause] = Counter()
    sizes: Counter[int] = Counter()
    for growth in course.growths:
        causes[growth.cause] += growth.size
        sizes[growth.size] += growth.size
    ordered = dict(causes.most_common())
    return HostExplanation(
        path=path,
        course=course,
        causes=ordered,
        lines=_lines(trace, course.growths),
        sizes=dict(sizes.most_common()),
        advice=tuple(_host_advice(course, ordered)),
    )


def _lines(trace: Trace, growths: tuple[Growth, ...]) -> tuple[HostLine, ...]:
    found: dict[str, list[int]] = {}
    for growth in growths:
        stack = tuple(filter(is_python, trace.frame_table.stack(growth.frames)))
        found.setdefault(Whose(stack).line(), []).append(growth.size)
    rows = [HostLine(line, sum(sizes), len(sizes)) for line, sizes in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.line)))


def _host_advice(course: HostCourse, causes: dict[GrowthCause, int]) -> list[str]:
    least = _MUCH * sum(causes.values())
    advice = [_ADVICE[cause] for cause, size in causes.items() if size >= least]
    if course.end.cached > _MUCH * course.peak.pinned:
        size = format_size(course.end.cached)
        advice.append(f"torch._C._host_emptyCache() would release the {size} that are cached")
    return advice
