"""One script on two models, op by op, up to the first difference.

After each op both have returned the same address or error text.  At the end, and every `LOOK_EVERY`
ops, statistics, segments and history are equal.  Undefined behaviour ends a script: the core must
report it, the naive model need not.  In rows, the core takes requests and frees through the loop of
a replay (core/fast_path.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from allocsim.core import ReplayAllocator
from allocsim.errors import AllocsimError, InvariantError, OutOfMemoryError, UndefinedBehaviorError
from allocsim.verify import Script, comparison
from allocsim.verify.player import free_in_row, malloc_in_row
from allocsim.verify.script import Op
from tests.golden.runner import Allocator
from tests.naive.model import NaiveAllocator

__all__ = ["duel", "shortest"]

LOOK_EVERY = 500
"""Ops between comparisons of the whole state, with a check of the invariants."""


class Played:
    """The core, with requests and frees passed to `play` one at a time."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._allocator = ReplayAllocator(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)

    def malloc(self, size: int, stream: int = 0) -> int | None:
        return malloc_in_row(self._allocator, size, stream)

    def free(self, address: int | None) -> None:
        free_in_row(self._allocator, address)


def duel(script: Script, release: str, *, in_rows: bool = False) -> str | None:
    """Return the first difference as a sentence, or None."""
    core = _made(Played if in_rows else ReplayAllocator, script, release)
    naive = _made(NaiveAllocator, script, release)
    if isinstance(core, str) or isinstance(naive, str):
        return None if isinstance(core, str) and isinstance(naive, str) else f"{core} / {naive}"
    live: dict[Any, Any] = {}
    handles = script.stream_handles()
    for number, op in enumerate(script.ops):
        mine = _outcome(core, op, live, handles)
        theirs = _outcome(naive, op, live, handles)
        if mine.startswith("UndefinedBehaviorError"):
            return None
        if mine != theirs:
            return f"op {number} {list(op)}: core {mine}, naive {theirs}"
        if mine.startswith("InvariantError"):
            return f"op {number} {list(op)}: {mine}"
        if op[0] == "a":
            live.pop(op[1], None)
            if mine.isdigit():
                live[op[1]] = int(mine)
        elif op[0] == "f":
            live.pop(op[1], None)
        last = number == len(script.ops) - 1
        if (last or number % LOOK_EVERY == 0) and (found := _state(core, naive)):
            return f"after op {number} {list(op)}: {found}"
    return None


def _made(make: Callable[..., Any], script: Script, release: str) -> Any:
    try:
        return make(
            script.device_memory,
            script.conf,
            release,
            address_policy=script.address_policy,
            record_history=True,
        )
    except AllocsimError as error:
        return f"{type(error).__name__} at the start"


def _outcome(a: Allocator, op: Op, live: dict[Any, Any], handles: dict[int, int]) -> str:
    """Return the address, or the error: its text if it is from PyTorch, else its class."""
    try:
        return str(_do(a, op, live, handles))
    except OutOfMemoryError as error:
        return f"out of memory: {error}"
    except InvariantError as error:
        return f"InvariantError: {error}"
    except UndefinedBehaviorError as error:
        return f"UndefinedBehaviorError: {error}"
    except (AllocsimError, ValueError) as error:
        kind = "ConfigError" if op[0] == "c" else type(error).__name__
        return f"{kind} raised"


def _do(  # noqa: PLR0912  (one branch an op)
    a: Allocator, op: Op, live: dict[Any, Any], handles: dict[int, int]
) -> int | None:
    match op:
        case ["a", _, size, stream]:
            return a.malloc(size, handles[stream])
        case ["f", name]:
            a.free(live.get(name))
        case ["r", name, stream] if name in live:
            a.record_stream(live[name], handles[stream])
        case ["s", stream]:
            a.synchronize(handles[stream])
        case ["S"]:
            a.synchronize()
        case ["e"]:
            a.empty_cache()
        case ["m", fraction]:
            a.set_per_process_memory_fraction(float(fraction))
        case ["c", conf]:
            a.set_allocator_settings(conf)
        case ["k"]:
            a.reset_peak_memory_stats()
        case ["K"]:
            a.reset_accumulated_memory_stats()
        case ["P", "b", pool, *marks]:
            no_split, use_on_oom = (bool(mark) for mark in (*marks, 0, 0)[:2])
            a.begin_allocate_to_pool(pool, no_split=no_split, use_on_oom=use_on_oom)
        case ["P", "e", pool]:
            a.end_allocate_to_pool(pool)
        case ["P", "r", pool]:
            a.release_pool(pool)
        case ["P", "v", pool]:
            a.empty_cache(pool)
        case ["P", "l", pool]:
            a.delete_mempool(pool)
    return None


def _state(core: ReplayAllocator, naive: Allocator) -> str | None:
    """Return the difference in statistics, segments or history, or a broken invariant."""
    try:
        core.check()
    except InvariantError as error:
        return str(error)
    mine, theirs = core.memory_stats(), naive.memory_stats()
    for key in sorted({*mine, *theirs}):
        if mine.get(key) != theirs.get(key):
            return f"{key}: core {mine.get(key)}, naive {theirs.get(key)}"
    ours, other = core.snapshot(), naive.snapshot()
    return _first(ours["segments"], other["segments"], _SEGMENT, "segment") or _first(
        ours["device_traces"][0], other["device_traces"][0], _ENTRY, "entry"
    )


_SEGMENT = (
    "address",
    "total_size",
    "requested_size",
    "allocated_size",
    "active_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "blocks",
)
_ENTRY = ("action", "addr", "device_free", "size", "stream")
_BLOCK = ("size", "requested_size", "state")


def _first(
    mine: Sequence[dict[str, Any]],
    theirs: Sequence[dict[str, Any]],
    keys: Sequence[str],
    what: str,
) -> str | None:
    if len(mine) != len(theirs):
        return f"{len(mine)} {what}s in the core, {len(theirs)} in the naive model"
    for number, (ours, other) in enumerate(zip(mine, theirs, strict=True)):
        for key in keys:
            left, right = ours.get(key), other.get(key)
            if key == "blocks":
                left = [[block[part] for part in _BLOCK] for block in ours[key]]
                right = [[block[part] for part in _BLOCK] for block in other[key]]
            if left != right:
                return f"{what} {number}, {key}: core {left}, naive {right}"
    return None


def shortest(script: Script, release: str, *, in_rows: bool = False) -> Script:
    """Return a script of few ops that still differs in the same way."""
    way = _way(duel(script, release, in_rows=in_rows))
    return comparison.shortest(
        script, lambda fewer: _way(duel(fewer, release, in_rows=in_rows)) == way
    )


def _way(difference: str | None) -> str | None:
    """Return a difference without its numbers and without its op."""
    if difference is None:
        return None
    return re.sub(r"0x[0-9a-f]+|[\d.]+", "#", difference.partition("]: ")[2] or difference)
