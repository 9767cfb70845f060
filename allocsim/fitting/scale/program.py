"""Steps of a program on the allocator, with the sizes separate from everything else.

Rule: two recordings are of one program if it made the same requests and frees in the same order:
request k is freed at the same step, on the same stream, in the same pool. Addresses and the
driver's actions are ignored, because they follow from the sizes. Blocks are numbered by request.
Blocks from before the recording have negative numbers in the order of their addresses. Streams are
numbered by first use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.errors import RecordingError
from allocsim.metrics import Code, code_at
from allocsim.replaying import Prepared
from allocsim.simulation import StepKind, Steps
from allocsim.state import INACTIVE
from allocsim.units import format_size

FREES = (StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE)
"""Kinds of steps that free a block."""


@dataclass(frozen=True, slots=True, eq=False)
class SizedProgram:
    """Requests, frees and other calls of a program on one device, one column element per call.

    prepared: recording of the first sample, prepared for replay.
    steps: steps for the engine, as recorded or with parts repeated (`growth.py`); their entries are
        those of `prepared`.
    kind: kind of the step, a code of `StepKind`.
    block: number of the block that is requested or freed, 0 in other rows.
    stream: number of the stream.
    argument: argument of other steps (a pool, a change of settings), 0 in requests and frees.
    size: bytes of each request, in order.
    before: bytes of the blocks from before the recording, in the order of their addresses.
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
        """Rows that are requests."""
        return np.flatnonzero(self.kind == StepKind.ALLOC)

    def first_difference(self, other: SizedProgram) -> int | None:
        """Return the first row that differs in `other` apart from bytes, or None."""
        shared = min(len(self.kind), len(other.kind))
        differs = np.zeros(shared, dtype=bool)
        for name in ("kind", "block", "stream", "argument"):
            differs |= getattr(self, name)[:shared] != getattr(other, name)[:shared]
        if differs.any():
            return int(np.argmax(differs))
        return None if len(self.kind) == len(other.kind) else shared

    def described(self, row: int) -> str:
        """Return a description of a row with its line of code, for error messages."""
        if row >= len(self.kind):
            return "nothing: the program ends"
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
        """Return the line of code that caused a row, or None if its stack is unknown."""
        return code_at(self.prepared.trace, int(self.steps.entry[row]))


def program_of(prepared: Prepared) -> SizedProgram:
    """Return the program of one device of a recording.

    Raises RecordingError for a recording that ran out of memory, because it ends early or continues
    differently.
    """
    plan = prepared.free_plan
    steps = plan.steps
    failed = np.flatnonzero(steps.kind == StepKind.OOM)
    if len(failed):
        entry = int(steps.entry[failed[0]])
        what = "ran out of memory; expected a run where every request succeeded"
        raise RecordingError(prepared.path, what, entry=entry)
    blocks = [block for segment in prepared.start for block in segment.blocks]
    present = [block for block in blocks if block.state != INACTIVE]
    number = {block.address: i - len(present) for i, block in enumerate(present)}
    block, count = np.zeros(len(steps), dtype=np.int64), 0
    is_request = steps.kind == StepKind.ALLOC
    concerns_block = is_request | any_of(steps.kind, FREES)
    rows = np.flatnonzero(concerns_block)
    for row, address, requests in zip(
        rows.tolist(), steps.addr[rows].tolist(), is_request[rows].tolist(), strict=True
    ):
        if requests:
            number[address] = count
            count += 1
        block[row] = number[address]
    return SizedProgram(
        prepared=prepared,
        steps=steps,
        kind=steps.kind,
        block=block,
        stream=numbered(steps.stream),
        argument=np.where(concerns_block, 0, steps.size),
        size=steps.size[is_request],
        before=tuple(block.requested_size or block.size for block in present),
    )


def numbered(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Give equal values the same number, from 0 in the order of their first occurrence."""
    known, first, index = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(known), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(known))
    return rank[index]
