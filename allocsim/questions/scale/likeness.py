"""What makes two rows of two programs alike.

Rule: a row is told by what it does and by its stack; a free also by those of the request whose
block it frees.  Which of several like blocks that is, their order tells: how many that were
requested later, or earlier, still live.  Numbers of requests tell nothing, since one request more
changes all that follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.engine import StepKind
from allocsim.laws import BEFORE
from allocsim.questions.scale.program import FREES, Program

__all__ = ["Likeness", "likeness_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """How the rows of a program compare with those of another; row i is its row i.

    form: a number for what the row does and by which stack; the same in every program that was
        compared with the same `known`.
    exact: one for the form with its bytes.
    kin: by request, the number of its stack: blocks of one kin are told apart by their order.
    younger, older: of frees, how many living blocks of the kin were requested later and earlier
        than the one that is freed; 0 in other rows.
    """

    form: NDArray[np.int64]
    exact: NDArray[np.int64]
    kin: NDArray[np.int64]
    younger: NDArray[np.int64]
    older: NDArray[np.int64]


def likeness_of(program: Program, known: dict[Hashable, int]) -> Likeness:
    """known: the numbers given so far, to which those of this program are added."""
    stack = _stacks(program, known)
    kin = stack[program.requests]
    form = np.zeros(len(stack), dtype=np.int64)
    exact = form.copy()
    columns = (program.kind, program.stream, program.argument, stack, program.block)
    for row, (kind, stream, argument, by, block) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        told: tuple[int, ...] = (kind, stream, argument, by)
        size = 0
        if kind == StepKind.ALLOC or kind in FREES:
            told += (int(kin[block]) if block >= 0 else block,)
            size = int(program.size[block]) if block >= 0 else 0
        form[row] = known.setdefault(told, len(known))
        exact[row] = known.setdefault((*told, size), len(known))
    return Likeness(form, exact, kin, *_orders(program, kin))


def _stacks(program: Program, known: dict[Hashable, int]) -> NDArray[np.int64]:
    """By row, the number of its stack."""
    trace, entry = program.prepared.trace, program.steps.entry
    number = np.where(entry < 0, -1, trace.frames[entry])
    there, index = np.unique(number, return_inverse=True)
    stacks = (trace.frame_table.stack(each) for each in there.tolist())
    named = np.array([known.setdefault(stack, len(known)) for stack in stacks], dtype=np.int64)
    found: NDArray[np.int64] = named[index]
    return found


def _orders(
    program: Program, kin: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`younger` and `older` of every row."""
    alive: defaultdict[int, list[int]] = defaultdict(list)
    alive[BEFORE] = list(range(-len(program.before), 0))
    younger = np.zeros(len(program.kind), dtype=np.int64)
    older = younger.copy()
    for row, (kind, block) in enumerate(
        zip(program.kind.tolist(), program.block.tolist(), strict=True)
    ):
        if kind == StepKind.ALLOC:
            alive[int(kin[block])].append(block)
        elif kind in FREES:
            like = alive[int(kin[block]) if block >= 0 else BEFORE]
            older[row] = like.index(block)
            younger[row] = len(like) - 1 - older[row]
            if kind != StepKind.FREE_REQUEST:
                like.pop(int(older[row]))
    return younger, older
