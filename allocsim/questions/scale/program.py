"""What a program asked the allocator to do, with its sizes apart from everything else.

Rule: two recordings are of one program if it made the same requests and frees in the same order:
request k is freed at the same step, on the same stream, in the same pool.  Addresses and what the
driver did are no part of it, since they follow from the sizes.  Blocks are numbered by request,
those from before the recording by their addresses below 0, streams by their first use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of
from allocsim.engine import Prepared, StepKind, Steps
from allocsim.errors import RecordingError
from allocsim.measures import Code, code_at
from allocsim.state import INACTIVE
from allocsim.units import format_size

__all__ = ["FREES", "Program", "numbered", "program_of"]

FREES = (StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE)
"""Steps that are about a block and do not request it."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One device's steps as columns; row i is row i of `steps`.

    steps: what the engine drives: as recorded, or parts of it repeated (`growth.py`); entries are
        those of `prepared`.
    kind: codes of `StepKind`.
    block: the number of the block that is requested or freed, 0 in other rows.
    stream: the number of the stream.
    argument: what other steps are about (a pool, a change of settings), 0 in rows of blocks.
    size: bytes of each request, in order.
    before: bytes of the blocks that were there before the recording, by address.
    """

    prepared: Prepared
    steps: Steps
    kind: NDArray[np.uint8]
    block: NDArray[np.int64]
    stream: NDArray[np.int64]
    argument: NDArray[np.int64]
    size: NDArray[np.int64]
    before: tuple[int, ...]

    @property
    def requests(self) -> NDArray[np.intp]:
        """The rows of requests."""
        return np.flatnonzero(self.kind == StepKind.ALLOC)

    def first_difference(self, other: Program) -> int | None:
        """The first row in which two programs do something else; None if they are one."""
        shared = min(len(self.kind), len(other.kind))
        differs = np.zeros(shared, dtype=bool)
        for name in ("kind", "block", "stream", "argument"):
            differs |= getattr(self, name)[:shared] != getattr(other, name)[:shared]
        if differs.any():
            return int(np.argmax(differs))
        return None if len(self.kind) == len(other.kind) else shared

    def told(self, row: int) -> str:
        """What a row does, and by which line, in words."""
        if row >= len(self.kind):
            return "nothing: it ends there"
        steps = self.steps
        entry, kind = int(steps.entry[row]), StepKind(int(self.kind[row]))
        by = "" if (code := self.code(row)) is None else f" by {code}"
        if kind is StepKind.ALLOC:
            what = f"a request of {format_size(int(steps.size[row]))}"
        elif kind in FREES:
            block = int(self.block[row])
            what = "a free of " + (
                f"request {block:,}" if block >= 0 else "a block from before the recording"
            )
        else:
            what = kind.name.lower()
        return f"entry {entry:,}, {what}{by}"

    def code(self, row: int) -> Code | None:
        """The line of a row, as far as stacks tell."""
        return code_at(self.prepared.trace, int(self.steps.entry[row]))


def program_of(prepared: Prepared) -> Program:
    """The program of one device of a recording.

    Raises RecordingError for one that ran out of memory, which ends in the middle or goes on
    otherwise than it would have.
    """
    plan = prepared.free_plan
    steps = plan.steps
    failed = np.flatnonzero(steps.kind == StepKind.OOM)
    if len(failed):
        entry = int(steps.entry[failed[0]])
        what = "ran out of memory there; expected a run in which every request was answered"
        raise RecordingError(prepared.path, what, entry=entry)
    blocks = [block for segment in prepared.start for block in segment.blocks]
    there = [block for block in blocks if block.state != INACTIVE]
    number = {block.address: i - len(there) for i, block in enumerate(there)}
    block, count = np.zeros(len(steps), dtype=np.int64), 0
    is_request = steps.kind == StepKind.ALLOC
    of_a_block = is_request | any_of(steps.kind, FREES)
    rows = np.flatnonzero(of_a_block)
    for row, address, asks in zip(
        rows.tolist(), steps.addr[rows].tolist(), is_request[rows].tolist(), strict=True
    ):
        if asks:
            number[address] = count
            count += 1
        block[row] = number[address]
    return Program(
        prepared=prepared,
        steps=steps,
        kind=steps.kind,
        block=block,
        stream=numbered(steps.stream),
        argument=np.where(of_a_block, 0, steps.size),
        size=steps.size[is_request],
        before=tuple(block.requested_size or block.size for block in there),
    )


def numbered(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Values by the order in which they first come."""
    known, first, index = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(known), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(known))
    return rank[index]
