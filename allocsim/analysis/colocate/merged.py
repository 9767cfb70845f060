"""One plan of several programs that are threads of one process, and so share one allocator.

Blocks, streams and pools of program n have their recorded names plus a multiple of n, so that they
stay apart.  The default stream is the same in all threads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from allocsim._fast_numpy import any_of
from allocsim.analysis.colocate.programs import Phase, Program, Turn
from allocsim.errors import ConfigError
from allocsim.export import columns_of
from allocsim.simulation import Change, Plan, Planned, StepKind, Steps
from allocsim.state import DEFAULT_POOL, INACTIVE, PENDING, PoolId

_APART = 52  # addresses and stream handles have fewer bits than this
_POOLS_APART = 32

_OF_POOLS = (StepKind.SCOPE, StepKind.END_POOL, StepKind.DELETE_POOL)
_CHANGES = (StepKind.SETTINGS, StepKind.FRACTION)


def pool_in(program: int, pool: PoolId) -> PoolId:
    """Return the id that a pool of a program has in the shared allocator."""
    return pool[0], pool[1] + (program << _POOLS_APART)


def merged(
    programs: Sequence[Program], phases: Sequence[Phase], turns: Sequence[Turn]
) -> tuple[Plan, tuple[int, ...]]:
    """Combine the plans of all programs into one plan for a shared allocator.

    Also return, for each turn, the number of steps of this plan up to its end.
    phases, turns: order of the programs; a turn is steps of one program without interruption.
    Raises ConfigError if the programs need different releases or settings.
    """
    first = programs[0]
    for other in programs[1:]:
        if other.prepared.release != first.prepared.release:
            ours, theirs = first.prepared.release.version, other.prepared.release.version
            raise ConfigError(
                f"threads share one PyTorch, but {other.letter} needs {theirs} and {first.letter} "
                f"{ours}; expected one release (--torch)"
            )
        if other.setting.config(other.prepared.release) != first.setting.config(
            first.prepared.release
        ):
            raise ConfigError(
                f"threads share one allocator, but {other.letter} has the settings "
                f"{other.setting} and {first.letter} {first.setting}; expected --conf"
            )
    pools: list[PoolId] = []
    changes: list[Change] = []
    rows = [_Renamed(number, program, pools, changes) for number, program in enumerate(programs)]
    parts: list[Steps] = []
    ends, last = [], -1
    reached = 0
    for turn in turns:
        number = phases[turn.phase].program
        row = rows[number]
        added = [row.steps.part(turn.first, turn.end)]
        if number != last:
            added.insert(0, row.entering(turn.first))
        last = number
        parts += added
        reached += sum(map(len, added))
        ends.append(reached)
    columns = ("kind", "entry", "addr", "size", "stream")
    steps = Steps(*(np.concatenate([getattr(p, name) for p in parts]) for name in columns))
    plan = replace(first.plan, steps=steps, pools=tuple(pools), changes=tuple(changes))
    return plan, tuple(ends)


class _Renamed:
    # The constructor appends the program's pools and changes of settings to `pools` and `changes`.
    def __init__(
        self, number: int, program: Program, pools: list[PoolId], changes: list[Change]
    ) -> None:
        plan, apart = program.plan, np.uint64(number << _APART)
        size = plan.steps.size.copy()
        kind = plan.steps.kind
        self._start = _live_steps(number, program, pools, plan)
        of_pools = any_of(kind, _OF_POOLS) & (size >= 0)
        size[of_pools] += len(pools)
        pools += [pool_in(number, pool) for pool in plan.pools]
        of_changes = any_of(kind, _CHANGES)
        size[of_changes] += len(changes)
        changes += plan.changes
        stream = plan.steps.stream
        self.steps = Steps(
            kind=kind,
            entry=plan.steps.entry,
            addr=plan.steps.addr + apart,
            size=size,
            stream=np.where(stream == 0, stream, stream + apart),
        )
        self._scopes = _scopes(self.steps)

    def entering(self, step: int) -> Steps:
        """Return the steps to insert when the program continues at `step`.

        They select the pool that the program was using.  Before the first step, they also allocate
        the blocks that were in use before the recording.
        """
        at = bisect_right(self._scopes, step - 1, key=lambda each: each[0]) - 1
        pool, stream = self._scopes[at][1:] if at >= 0 else (-1, 0)
        rows = [] if step else list(self._start)
        rows.append((StepKind.SCOPE, 0, 0, pool, stream))
        dtypes = (np.uint8, np.int64, np.uint64, np.int64, np.uint64)
        return Steps(*columns_of(zip(*rows, strict=True), dtypes))


def _scopes(steps: Steps) -> list[tuple[int, int, int]]:
    # Items are (step, pool, stream); the pool is -1 where the use of a pool ends.
    found: list[tuple[int, int, int]] = []
    for at in np.flatnonzero(any_of(steps.kind, _OF_POOLS)).tolist():
        pool, stream = int(steps.size[at]), int(steps.stream[at])
        if steps.kind[at] == StepKind.SCOPE:
            found.append((at, pool, stream))
        elif found and found[-1][1] == pool:
            found.append((at, -1, stream))
    return found


def _live_steps(number: int, program: Program, pools: list[PoolId], plan: Plan) -> list[Planned]:
    rows: list[Planned] = []
    apart = number << _APART
    ordered = sorted(program.prepared.start, key=lambda s: (s.pool_id, s.stream, s.address))
    for segment in ordered:
        pool = -1
        if segment.pool_id != DEFAULT_POOL:
            if segment.pool_id not in plan.pools:
                continue  # no entry names the pool, and its memory stays as it is
            pool = len(pools) + plan.pools.index(segment.pool_id)
        stream = segment.stream + apart if segment.stream else 0
        rows.append((StepKind.SCOPE, 0, 0, pool, stream))
        for block in segment.blocks:
            if block.state == INACTIVE:
                continue
            size = block.requested_size or block.size
            rows.append((StepKind.ALLOC, 0, block.address + apart, size, stream))
            if block.state == PENDING:
                rows.append((StepKind.FREE_REQUEST, 0, block.address + apart, size, stream))
    return rows
