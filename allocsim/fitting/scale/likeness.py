"""Numbers by which rows of two programs are compared.

Rule: a row is identified by its kind and stack, and a free also by the kind and stack of the
    request whose block it frees. Blocks of requests with equal kind and stack form a group; among
    them the order decides: the number of live blocks that were requested later, or earlier. Numbers
    of requests are not compared, because one more request changes all later numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.fitting.laws import BEFORE
from allocsim.fitting.scale.program import FREES, Program
from allocsim.simulation import StepKind

__all__ = ["Likeness", "likeness_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """Numbers by which a program's rows are compared, in columns with one element per row.

    form: number for the row's kind and stack; the same in all programs that share `known`.
    exact: number for the form and the bytes.
    group: for each request, the number of its stack.
    younger, older: for a free, the number of live blocks in the group that were requested later and
        earlier than its block; 0 in other rows.
    """

    form: NDArray[np.int64]
    exact: NDArray[np.int64]
    group: NDArray[np.int64]
    younger: NDArray[np.int64]
    older: NDArray[np.int64]


def likeness_of(program: Program, known: dict[Hashable, int]) -> Likeness:
    """Return the numbers by which a program's rows are compared.

    known: number of each form so far; new forms of this program are added.
    """
    stack = _stacks(program, known)
    group = stack[program.requests]
    form = np.zeros(len(stack), dtype=np.int64)
    exact = form.copy()
    columns = (program.kind, program.stream, program.argument, stack, program.block)
    for row, (kind, stream, argument, by, block) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        identity: tuple[int, ...] = (kind, stream, argument, by)
        size = 0
        if kind == StepKind.ALLOC or kind in FREES:
            identity += (int(group[block]) if block >= 0 else block,)
            size = int(program.size[block]) if block >= 0 else 0
        form[row] = known.setdefault(identity, len(known))
        exact[row] = known.setdefault((*identity, size), len(known))
    return Likeness(form, exact, group, *_orders(program, group))


def _stacks(program: Program, known: dict[Hashable, int]) -> NDArray[np.int64]:
    """Return the number of each row's stack."""
    trace, entry = program.prepared.trace, program.steps.entry
    number = np.where(entry < 0, -1, trace.frames[entry])
    present, index = np.unique(number, return_inverse=True)
    stacks = (trace.frame_table.stack(each) for each in present.tolist())
    named = np.array([known.setdefault(stack, len(known)) for stack in stacks], dtype=np.int64)
    found: NDArray[np.int64] = named[index]
    return found


def _orders(
    program: Program, group: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return `younger` and `older` of `Likeness`."""
    alive: defaultdict[int, list[int]] = defaultdict(list)
    alive[BEFORE] = list(range(-len(program.before), 0))
    younger = np.zeros(len(program.kind), dtype=np.int64)
    older = younger.copy()
    for row, (kind, block) in enumerate(
        zip(program.kind.tolist(), program.block.tolist(), strict=True)
    ):
        if kind == StepKind.ALLOC:
            alive[int(group[block])].append(block)
        elif kind in FREES:
            same_group = alive[int(group[block]) if block >= 0 else BEFORE]
            older[row] = same_group.index(block)
            younger[row] = len(same_group) - 1 - older[row]
            if kind != StepKind.FREE_REQUEST:
                same_group.pop(int(older[row]))
    return younger, older
