"""Blocks that other streams used are free once the work before the free is done.

Events are polled only at the beginning of a malloc; a release of cached blocks waits for all.
"""

from __future__ import annotations

from tests.naive.block import Block, PrivatePool
from tests.naive.state import State

__all__ = ["free_block", "insert_events", "process_events", "synchronize_events"]


def free_block(state: State, block: Block) -> None:
    """Complete a free: merge, and enter the free blocks (semantics 2.2)."""
    state.note_block("free_completed", block)
    state.make_free(block)
    state.merge(block)
    state.observe()


def insert_events(state: State, block: Block) -> None:
    """Record an event on each stream that used `block` (semantics 2.3)."""
    for stream in block.streams:
        block.event_count += 1
        state.queues.insert(stream, [])
        state.queues[stream].append((state.driver.record(stream), block))
    block.streams = type(block.streams)(block.streams.hash_of)


def release_deferred(state: State, blocks: list[Block]) -> None:
    """Record the events of blocks freed in a scope (semantics 5.5)."""
    for block in blocks:
        state.deferred.remove(block)
        if state.minor >= 4:
            for stream in sorted(block.capture_streams):
                if stream in block.streams:
                    block.streams.erase(stream)
            block.capture_streams = set()
        if len(block.streams):
            insert_events(state, block)
        else:
            free_block(state, block)


def complete(state: State, block: Block) -> None:
    block.event_count -= 1
    if block.event_count == 0:
        free_block(state, block)


def process_events(state: State) -> None:
    """Free the blocks whose events passed, stream by stream, up to the first that did not."""
    release_deferred(state, list(state.deferred))
    passed: set[int] = set()
    while waiting := [stream for stream in state.queues if stream not in passed]:
        stream = waiting[0]
        passed.add(stream)
        queue = state.queues[stream]
        while queue and state.driver.is_done(queue[0][0]):
            complete(state, queue.pop(0)[1])
        if not queue:
            state.queues.erase(stream)


def synchronize_events(state: State, owner: PrivatePool | None = None) -> None:
    """Wait for every event, or those of one private pool, and free its block (semantics 2.4)."""
    state.stats.count("num_sync_all_streams")
    release_deferred(state, list(state.deferred))
    for stream in list(state.queues):
        others = []
        for event, block in state.queues[stream]:
            if owner is None or owner is block.pool.owner:
                state.driver.wait(event)
                complete(state, block)
            else:
                others.append((event, block))
        if others:
            state.queues[stream][:] = others
        else:
            state.queues.erase(stream)
