"""Calls of the program that a mark records, as steps of a plan.

They are part of every replay, whatever the setting.  The memory fraction that a program begins with
is not a step; it is in force before the first one.  Unmarked calls, for example of empty_cache, are
inferred by `causes.py` and `search.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from allocsim.inference.gaps import Call
from allocsim.recording import Mark, MarkKind
from allocsim.simulation import Change, StepKind, is_at_start
from allocsim.state import PoolId

__all__ = ["calls_of"]


def calls_of(
    marks: Sequence[Mark], pools: Sequence[PoolId]
) -> tuple[tuple[Call, ...], tuple[Change, ...]]:
    """Return the known calls, and the values that they set at run time (`Plan.changes`).

    marks: calls that are recorded or given by hints, ordered by entry.
    pools: private pools by number.  Deletions of pools without any request are omitted.

    A memory fraction set before the first entry is not a call: every replay starts with it.
    """
    calls: list[Call] = []
    changes: list[Change] = []
    for mark in marks:
        # A mark with entry n comes before entry n.
        if mark.kind is MarkKind.EMPTY_CACHE:
            calls.append(Call(mark.entry, StepKind.EMPTY_CACHE, 0))
        elif mark.kind is MarkKind.POOL_DELETED and mark.value in pools:
            calls.append(Call(mark.entry, StepKind.DELETE_POOL, pools.index(mark.value)))
        elif mark.kind in _STEPS and not is_at_start(mark):
            assert isinstance(mark.value, str | float)
            calls.append(Call(mark.entry, _STEPS[mark.kind], len(changes)))
            changes.append(mark.value)
    return tuple(calls), tuple(changes)


_STEPS = {MarkKind.FRACTION: StepKind.FRACTION, MarkKind.SETTINGS: StepKind.SETTINGS}
