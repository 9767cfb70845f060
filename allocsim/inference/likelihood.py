"""Likelihood of the possible causes of a return of memory to the driver.

The likelihood only decides which cause is tried first.  If later entries contradict that cause,
`search.py` tries the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.core import (
    Block,
    ReplayAllocator,
    allocated_block,
    finds_free_block,
    mapped_for,
    served_once_free,
)
from allocsim.inference.gaps import Gap, RecordedEntry
from allocsim.recording import Action
from allocsim.simulation import StepKind


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the device and the program that are known before the search for causes.

    memory: bytes of the device; None if unknown.
    max_reserved: highest reserved memory after any entry, in bytes.
    calls: numbers of segment_free and segment_unmap entries whose Python stack names empty_cache.
    is_assumed: True if `memory` is an assumption.  Then memory of other processes is not considered
        as a reason for a full device.
    empties: False if a hint says that the program never called empty_cache.
    """

    memory: int | None
    max_reserved: int
    calls: frozenset[int]
    is_assumed: bool = False
    empties: bool = True


def was_called(gap: Gap, allocator: ReplayAllocator, facts: Facts) -> bool:
    """Return True if a call of empty_cache is more likely than a refused request."""
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
    """Return True if a garbage collection, a memory limit or a new setting may explain `gap`."""
    if has_just_set(gap):
        return True
    reserved, above = allocator.reserved_bytes, allocator.collects_garbage_above
    if above is not None and reserved > above:
        return True
    limit, config = allocator.memory_limit, allocator.config
    if limit is None or gap.step is None:
        return False
    # The limit counts the whole segment, even if an expandable one only grows (semantics 1.8).
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
    """Return the block that the free right before the gap freed; None without such a free."""
    if gap.free is None:
        return None
    address = gap.free.addr
    return allocator.named_blocks.get(address) or allocated_block(allocator, address)


def _finds_free_block(gap: Gap, step: RecordedEntry, allocator: ReplayAllocator) -> bool:
    freed = freed_block(gap, allocator)
    if freed is None:
        return finds_free_block(allocator, step.size, step.stream)
    return served_once_free(allocator, freed, step.size, step.stream)
