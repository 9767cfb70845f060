"""Write profiler traces of a program that the model runs, in the format of several releases.

Sizes of events are block sizes, as in PyTorch. The totals of the model are stored too, so that a
test can compare them with the result of reading.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allocsim import CachingAllocator

Event = dict[str, Any]
START = 1_700_000_000_000_000


@dataclass
class Profiled:
    """A profiled program: every request and free is an event with the totals after it."""

    allocator: CachingAllocator = field(default_factory=lambda: CachingAllocator("16GiB"))
    events: list[Event] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)

    def malloc(self, size: int) -> int:
        address = self.allocator.malloc(size)
        assert address is not None
        block = self.allocator.memory_stats()["allocated_bytes.all.current"]
        before = self.events[-1]["allocated"] if self.events else 0
        self.live[address] = block - before
        self._note(address, block - before)
        return address

    def free(self, address: int) -> None:
        self.allocator.free(address)
        self._note(address, -self.live.pop(address))

    def _note(self, address: int, moved: int) -> None:
        stats = self.allocator.memory_stats()
        self.events.append(
            {
                "address": address,
                "bytes": moved,
                "allocated": stats["allocated_bytes.all.current"],
                "reserved": stats["reserved_bytes.all.current"],
            }
        )


def random_program(seed: int, steps: int = 300) -> Profiled:
    """Run random requests and frees."""
    rng = random.Random(seed)
    profiled = Profiled()
    for _ in range(steps):
        if profiled.live and rng.random() < 0.48:
            profiled.free(rng.choice(list(profiled.live)))
        else:
            profiled.malloc(rng.choice((512, 3000, 700_000, 1 << 20, 3 << 20, 25 << 20)))
    return profiled


@dataclass(frozen=True)
class Form:
    """Trace format of a release.

    has_addresses: events have Addr and totals.
    has_index: events have Ev Idx.
    device: device type.
    spelled: names of the other fields.
    """

    has_addresses: bool = True
    has_index: bool = True
    device: int = 1
    unit: float = 1
    spelled: dict[str, Any] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)
    is_bare: bool = False
    is_shuffled: bool = False


_INSTANT = {"cat": "cpu_instant_event", "s": "t"}
_CARDS = {"deviceProperties": [{"id": 0, "name": "A card", "totalGlobalMem": 16 << 30}]}
FORMS = {
    "1.8.1": Form(has_addresses=False, has_index=False, spelled={"s": "t"}),
    "1.9, with cards": Form(has_addresses=False, has_index=False, top=_CARDS),
    "1.10, threads as text": Form(
        has_addresses=False, has_index=False, spelled={"tid": "5555", "pid": "5555"}
    ),
    "1.13": Form(has_index=False, spelled=_INSTANT),
    "2.0": Form(spelled=_INSTANT, top={"schemaVersion": 1}),
    "2.1, with cards": Form(spelled=_INSTANT, top={"schemaVersion": 1, **_CARDS}),
    "2.2, out of order": Form(spelled=_INSTANT, is_shuffled=True),
    "2.3, fractions of microseconds": Form(spelled=_INSTANT, unit=0.001, is_shuffled=True),
    "2.6, HIP": Form(device=6, spelled=_INSTANT, top=_CARDS),
    "2.9": Form(
        spelled={**_INSTANT, "args": {"finished": True}},
        top={"metadata": {"traceEvents": "none"}, "baseTimeNanoseconds": 1},
    ),
    "2.13, a list alone": Form(spelled=_INSTANT, is_bare=True),
}
"""Formats by the release that writes them."""


def trace_of(profiled: Profiled, form: Form, *, first: int = 0) -> object:
    """Return the trace's value for the events from `first` on."""
    events = [_event(number, each, form) for number, each in enumerate(profiled.events)][first:]
    if form.is_shuffled:
        random.Random(0).shuffle(events)
    others = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": 1, "dur": 1},
        {"ph": "i", "name": "Record Window End", "ts": START, "pid": "", "tid": ""},
        _event(0, {"address": 64, "bytes": 8, "allocated": 8, "reserved": 0}, form, host=True),
    ]
    both = [*others[:2], *events, *others[2:]]
    return both if form.is_bare else {**form.top, "traceEvents": both, "traceName": "t.json"}


def _event(number: int, each: Event, form: Form, *, host: bool = False) -> Event:
    args: Event = {
        "Device Type": 0 if host else form.device,
        "Device Id": -1 if host else 0,
        "Bytes": each["bytes"],
    }
    if form.has_addresses:
        args |= {"Total Allocated": each["allocated"], "Total Reserved": each["reserved"]}
        args["Addr"] = each["address"]
    if form.has_index:
        args["Ev Idx"] = number
    spelled = dict(form.spelled)
    args |= spelled.pop("args", {})
    # Without an index, the order of equal times is that of the file.
    ts = START + number * form.unit
    return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": args, **spelled}


def write_trace(path: Path, value: object, pack: Callable[[bytes], bytes] = gzip.compress) -> Path:
    """Write the trace to a file."""
    path.write_bytes(pack(json.dumps(value).encode()))
    return path
