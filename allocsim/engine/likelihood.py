"""Which of the causes that a recording leaves open is the likelier one.

Rule: likelihood is an order and no verdict.  What comes second is tried where what follows
contradicts the first (`reading.py`), so that nothing here rules anything out.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.core import (
    Block,
    CachingAllocator,
    allocated_block,
    finds_free_block,
    mapped_for,
    served_once_free,
)
from allocsim.engine.gaps import Gap, Recorded
from allocsim.engine.plan import StepKind
from allocsim.trace import Action

__all__ = ["Facts", "freed_block", "has_just_set", "is_limited", "was_called"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the device before anything is read.

    memory: bytes of the device; None: unknown.
    max_reserved: the most that it held at any entry.
    calls: the entries that gave memory back and whose stack names empty_cache.
    is_assumed: the memory is an assumption, so that nothing else may have made the device full.
    empties: whether the program may have called empty_cache where nothing says so.
    """

    memory: int | None
    max_reserved: int
    calls: frozenset[int]
    is_assumed: bool = False
    empties: bool = True


def was_called(gap: Gap, allocator: CachingAllocator, facts: Facts) -> bool:
    """Whether empty_cache is likelier than a refused request."""
    if gap.released[0].number in facts.calls:
        return True
    if gap.step is not None and gap.step.action == Action.OOM:
        return False
    wanted = _wanted(gap, allocator)
    if facts.memory is not None:
        return wanted <= allocator.device.free
    return allocator.reserved_bytes + wanted <= facts.max_reserved


def is_limited(gap: Gap, allocator: CachingAllocator) -> bool:
    """Whether garbage is collected, or the program's own limit or what it just set refuses more."""
    if has_just_set(gap):
        return True
    reserved, above = allocator.reserved_bytes, allocator.collects_garbage_above
    if above is not None and reserved > above:
        return True
    limit, config = allocator.memory_limit, allocator.config
    if limit is None or gap.step is None:
        return False
    # Of an expandable segment, too, that is the whole, whatever of it is there (semantics 1.8).
    return reserved + config.segment_size(config.round_size(gap.step.size)) > limit


def has_just_set(gap: Gap) -> bool:
    """Whether the program set a limit or options right before."""
    return any(call.kind in (StepKind.FRACTION, StepKind.SETTINGS) for call in gap.calls)


def _wanted(gap: Gap, allocator: CachingAllocator) -> int:
    """Bytes that the request asked the driver for at first.

    As many as it got; but of an expandable segment, which may have had room for it elsewhere once
    memory had been given back, what it would have mapped as things stood.
    """
    got, step = sum(entry.size for entry in (*gap.before, *gap.obtained)), gap.step
    if step is None or _finds_free_block(gap, step, allocator):
        return got
    return mapped_for(allocator, step.size, step.stream) or got


def freed_block(gap: Gap, allocator: CachingAllocator) -> Block | None:
    """What the free before a gap gives up, while it is allocated; None where there is none."""
    if gap.free is None:
        return None
    address = gap.free.addr
    return allocator.named_blocks.get(address) or allocated_block(allocator, address)


def _finds_free_block(gap: Gap, step: Recorded, allocator: CachingAllocator) -> bool:
    """Whether the request would have been served as things stood, the free before it complete."""
    freed = freed_block(gap, allocator)
    if freed is None:
        return finds_free_block(allocator, step.size, step.stream)
    return served_once_free(allocator, freed, step.size, step.stream)
