"""An op script played on the core, with results in the form of the golden cases.

Ops are those of the phantom driver: `a` allocate, `f` free, `r` record_stream, `s` and `S`
let streams finish, `e` empty_cache, `m` memory fraction, `P` pools, `c` settings, `k` and `K`
reset peak and accumulated statistics.  Stream n stands for the raw handle n * 4096; an id whose
allocation failed is skipped.  The first error that is not an out-of-memory one ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from allocsim.core import CachingAllocator
from allocsim.errors import AllocsimError, OutOfMemoryError

__all__ = ["HANDLE", "Op", "Outcome", "Script", "play"]

HANDLE = 4096
Op = Sequence[Any]
_COLUMNS = ("current", "peak", "allocated", "freed")


@dataclass(frozen=True, slots=True)
class Script:
    """The arguments are those of the phantom's script of the same name."""

    ops: Sequence[Op]
    device_memory: int
    conf: str = ""
    address_policy: str = "bump"


@dataclass(slots=True)
class Outcome:
    """What the core made of a script.  stopped: (op, the error), None where all ops ran."""

    addresses: list[int | None] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    segments: list[dict[str, Any]] = field(default_factory=list)
    trace: list[list[Any]] = field(default_factory=list)
    stopped: tuple[int, Exception] | None = None


def play(script: Script, torch_version: str, *, check_every: int = 0) -> Outcome:
    """Run every op; `check_every` ops the allocator's own invariants are walked."""
    outcome = Outcome()
    allocator = CachingAllocator(
        script.device_memory,
        script.conf,
        torch_version,
        address_policy=script.address_policy,
        record_history=True,
    )
    live: dict[Any, int] = {}
    for number, op in enumerate(script.ops):
        try:
            _step(allocator, op, live, outcome)
        except (AllocsimError, ValueError) as error:
            outcome.stopped = (number, error)
            break
        if check_every and number % check_every == 0:
            allocator.check()
    allocator.check()
    _tell(allocator, outcome)
    return outcome


def _step(a: CachingAllocator, op: Op, live: dict[Any, int], outcome: Outcome) -> None:
    match op:
        case ["a", name, size, stream]:
            address = _allocate(a, size, stream * HANDLE, outcome)
            live.pop(name, None)
            if address is not None:
                live[name] = address
        case ["f", name]:
            a.free(live.pop(name, None))
        case ["r", name, stream]:
            if name in live:
                a.record_stream(live[name], stream * HANDLE)
        case ["s", stream]:
            a.synchronize(stream * HANDLE)
        case ["P", what, pool, *marks]:
            _scope(a, what, pool, marks)
        case [letter, *arguments]:
            plain: dict[str, Callable[..., None]] = {
                "S": a.synchronize,
                "e": a.empty_cache,
                "m": a.set_per_process_memory_fraction,
                "c": a.set_allocator_settings,
                "k": a.reset_peak_memory_stats,
                "K": a.reset_accumulated_memory_stats,
            }
            plain[letter](*(float(x) if letter == "m" else x for x in arguments))


def _allocate(a: CachingAllocator, size: int, stream: int, outcome: Outcome) -> int | None:
    try:
        address = a.malloc(size, stream)
    except OutOfMemoryError as error:
        outcome.messages.append(str(error))
        address = None
    outcome.addresses.append(address)
    return address


def _scope(a: CachingAllocator, what: str, pool: int, marks: list[Any]) -> None:
    if what == "b":
        no_split, use_on_oom = (bool(mark) for mark in (*marks, 0, 0)[:2])
        a.begin_allocate_to_pool(pool, no_split=no_split, use_on_oom=use_on_oom)
    elif what == "e":
        a.end_allocate_to_pool(pool)
    else:
        a.release_pool(pool)


def _tell(allocator: CachingAllocator, outcome: Outcome) -> None:
    flat = allocator.memory_stats()
    outcome.stats = {
        key.removesuffix(".current"): [
            flat[f"{key.removesuffix('.current')}.{column}"] for column in _COLUMNS
        ]
        for key in flat
        if key.endswith(".current")
    }
    outcome.stats |= {key: flat[key] for key in flat if "." not in key}
    outcome.segments = [_segment(segment) for segment in allocator.segments()]
    outcome.trace = [
        [entry.action, entry.address, entry.size, entry.stream // HANDLE]
        for entry in allocator.take_history()
    ]
    active = sum(segment["active_size"] for segment in outcome.segments)
    outcome.trace.append(["snapshot", 0, active, 0])


def _segment(segment: dict[str, Any]) -> dict[str, Any]:
    kept = {key: segment[key] for key in _SEGMENT_KEYS}
    return {
        **kept,
        "stream": segment["stream"] // HANDLE,
        "is_large": segment["segment_type"] == "large",
        "pool": segment["segment_pool_id"][1],
        "blocks": [[b["size"], b["requested_size"], b["state"]] for b in segment["blocks"]],
    }


_SEGMENT_KEYS = (
    "address",
    "total_size",
    "requested_size",
    "allocated_size",
    "active_size",
    "is_expandable",
)
