"""Random programs recorded under one setting, replayed under others, and run under those.

A what-if replay must equal the run of the program by the naive model under the same setting and
device: every statistic at its end, and the text of the error that ends it.  The replay of the
recorded settings, at the recorded addresses, must equal the recording.  A program contains only
what a recording can show: requests and frees on several streams, uses by other streams, and the
calls that `record` marks, empty_cache, set_per_process_memory_fraction and _set_allocator_settings.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from allocsim import CachingAllocator, replay
from allocsim.core import RELEASES, Release, parse_conf
from allocsim.errors import (
    AllocsimError,
    ConfigError,
    OutOfMemoryError,
    RecordingError,
    UndefinedBehaviorError,
)
from allocsim.recording import Recording, read_snapshot
from allocsim.simulation import Setting
from allocsim.units import GIB, KIB, MIB
from allocsim.verify.generator import RandomSettings
from allocsim.verify.script import HANDLE, Op
from tests.golden.runner import Allocator
from tests.naive.model import NaiveAllocator

__all__ = [
    "Answer",
    "Program",
    "WhatIf",
    "differences",
    "make_program",
    "recorded",
    "run",
    "what_ifs",
]

BASE = 0x7F00_0000_0000
_DEVICES = (100 * MIB + 12345, 200 * MIB - 1, 512 * MIB, GIB, 3 * GIB + 777)
_EDGES = (512, KIB, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 21 * MIB, 40 * MIB, 64 * MIB)
_LENGTHS = (10, 30, 60, 120, 400)
_MARKED = {
    "e": "empty_cache",
    "m": "set_per_process_memory_fraction",
    "c": "_set_allocator_settings",
}
_WHAT_IFS = 10
"""Number of what-if replays for each recording."""

Answer = tuple[str | None, dict[str, int]]
"""(error that ended the program, its statistics)."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Another setting, device or release; policy: address policy of the driver."""

    release: str
    conf: str
    device_memory: int
    policy: str


@dataclass(frozen=True, slots=True)
class Program:
    """Ops in the form of the cross-check's scripts, and the settings of their recording."""

    ops: tuple[Op, ...]
    release: str
    conf: str
    device_memory: int

    @property
    def is_used_by_others(self) -> bool:
        """True if other streams use blocks, and so delay their frees."""
        return any(op[0] == "r" for op in self.ops)


def make_program(seed: int, release: Release) -> Program:
    """Return the program of `seed`: sizes near the boundaries of the rules, with repeats."""
    rng = random.Random(f"what-if {seed} {release.version}")
    conf = RandomSettings(rng, release, has_pools=False).make() if rng.random() < 0.5 else ""
    device_memory = rng.choice(_DEVICES)
    favourites = [_size(rng, device_memory) for _ in range(rng.choice((1, 3, 8)))]
    streams = rng.choice(((0,), (0,), (0, 1), (0, 1, 2)))
    others = rng.choice((0.0, 0.1, 0.3)) if len(streams) > 1 else 0.0
    empties = rng.choice((0.0, 0.0, 0.02))
    grows = rng.choice((0.5, 0.55, 0.7))
    chance = random.Random(f"calls {seed} {release.version}")
    limits, changes = (chance.choice((0.0, 0.0, 0.0, 0.02)) for _ in range(2))
    options = RandomSettings(chance, release, has_pools=False)
    ops: list[Op] = []
    live: list[int] = []
    for name in range(rng.choice(_LENGTHS)):
        if rng.random() < grows or not live:
            size = rng.choice(favourites) if rng.random() < 0.6 else _size(rng, device_memory)
            ops.append(["a", name, size, rng.choice(streams)])
            live.append(name)
        else:
            ops.append(["f", live.pop(rng.choice((0, -1, rng.randrange(len(live)))))])
        if rng.random() < others:
            ops.append(["r", rng.choice(live), rng.choice(streams)] if live else ["S"])
        if rng.random() < others:
            ops.append(rng.choice((["S"], ["s", rng.choice(streams)])))
        if rng.random() < empties:
            ops.append(["e"])
        if chance.random() < limits:
            ops.append(["m", chance.choice((1.0, 0.5, 0.9, 0.77))])
        if chance.random() < changes:
            ops.append(["c", options.make()])
    return _survived(Program(tuple(ops), release.version, conf, device_memory))


def _survived(program: Program) -> Program:
    """Return the program up to the request that the recorded device refuses.

    Without uses by other streams, up to the first request refused for good.  A request that waits
    for other streams does not show in the recording when their frees would have completed without
    it.
    """
    made = CachingAllocator(program.device_memory, program.conf, program.release)
    live: dict[int, int | None] = {}
    for number, op in enumerate(program.ops):
        try:
            _do(made, op, live)
        except AllocsimError:
            return replace(program, ops=program.ops[:number])
        if program.is_used_by_others and made.memory_stats()["num_alloc_retries"]:
            return replace(program, ops=program.ops[:number])
    return program


def _size(rng: random.Random, device_memory: int) -> int:
    if rng.random() < 0.4:
        return max(1, rng.choice(_EDGES) + rng.choice((-512, -1, 0, 0, 1, 512)))
    return int(2 ** rng.uniform(0, device_memory.bit_length() - 3))


def what_ifs(seed: int, release: Release) -> Iterator[WhatIf]:
    """Return settings of every option of a release, mostly `release`, on devices of several sizes.

    Some devices are too small.
    """
    rng = random.Random(f"settings {seed} {release.version}")
    for _ in range(_WHAT_IFS):
        asked = release if rng.random() < 0.7 else rng.choice(list(RELEASES.values()))
        conf = RandomSettings(rng, asked, has_pools=False).make()
        memory = rng.choice((*_DEVICES, 37 * MIB, 16 * GIB))
        yield WhatIf(asked.version, conf, memory, rng.choice(("bump", "firstfit")))


def recorded(program: Program) -> Recording:
    """Return the recording that `record` would have written."""
    made = CachingAllocator(
        program.device_memory,
        program.conf,
        program.release,
        base_address=BASE,
        record_history=True,
    )
    marks: list[dict[str, Any]] = []
    live: dict[int, int | None] = {}
    for op in program.ops:
        if op[0] in _MARKED:
            value = op[1] if len(op) > 1 else None
            entry = len(made.history)
            marks.append({"device": 0, "entry": entry, "kind": _MARKED[op[0]], "value": value})
        _do(made, op, live)
    noted = {
        "torch_version": f"{program.release}.0",
        "conf_at_start": program.conf,
        "device_memory": program.device_memory,
        "marks": marks,
    }
    return read_snapshot("a random program", {**made.snapshot(), "allocsim": noted}, 1 << 20)


def _do(a: Allocator, op: Op, live: dict[int, int | None]) -> None:
    match op:
        case ["a", name, size, stream]:
            live[name] = a.malloc(size, stream * HANDLE)
        case ["f", name]:
            a.free(live.pop(name))
        case ["r", name, stream]:
            address = live[name]
            assert address is not None
            a.record_stream(address, stream * HANDLE)
        case ["s", stream]:
            a.synchronize(stream * HANDLE)
        case ["S"]:
            a.synchronize()
        case ["e"]:
            a.empty_cache()
        case ["m", fraction]:
            a.set_per_process_memory_fraction(fraction)
        case ["c", conf]:
            a.set_allocator_settings(conf)


def run(program: Program, asked: WhatIf) -> Answer:
    """Run the program with the naive model and return the answer."""
    model = NaiveAllocator(
        asked.device_memory,
        asked.conf,
        asked.release,
        address_policy=asked.policy,
        base_address=BASE,
    )
    live: dict[int, int | None] = {}
    release = RELEASES[asked.release]
    is_other = str(parse_conf(asked.conf, release)) != str(parse_conf(program.conf, release))
    has_limit = is_other and Setting(asked.conf).fraction(release) is not None
    for op in program.ops:
        if op[0] == "m" and has_limit:
            continue  # a limit in the other setting wins
        try:
            _do(model, op, live)
        except OutOfMemoryError as found:
            return str(found), model.memory_stats()
        except AllocsimError as found:
            return _raised(found), {}
    return None, model.memory_stats()


def replayed(recording: Recording, asked: WhatIf) -> Answer:
    """Replay the recording of the program and return the answer."""
    (device,) = replay(
        recording,
        asked.conf,
        device_memory=asked.device_memory,
        torch_version=asked.release,
        addresses=asked.policy,
        base_address=BASE,
    ).devices
    return (device.ooms[-1].message if device.ooms else None), device.stats


def differences(seed: int, release: Release) -> Iterator[tuple[Program, WhatIf, str | None]]:
    """Return each what-if of a program with its difference as a sentence, or None."""
    program = make_program(seed, release)
    if not any(op[0] == "a" for op in program.ops):
        return
    recording = recorded(program)
    yield program, _as_recorded(program), _unlike_recorded(recording)
    for asked in what_ifs(seed, release):
        try:
            said = replayed(recording, asked)
        except UndefinedBehaviorError:
            continue
        except RecordingError:
            if asked.release == program.release:
                raise
            continue  # that release refuses the recorded settings
        except AllocsimError as error:
            said = _raised(error), {}
        is_order_open = program.is_used_by_others and said[1].get("num_alloc_retries", 0) > 0
        yield program, asked, _first(said, run(program, asked), is_order_open=is_order_open)


def _as_recorded(program: Program) -> WhatIf:
    return WhatIf(program.release, program.conf, program.device_memory, "recorded")


def _unlike_recorded(recording: Recording) -> str | None:
    """Return how the replay as recorded differs from the recording; checks every invariant."""
    (device,) = replay(recording, check_every=32).devices
    assert device.fidelity is not None
    if device.fidelity.is_exact:
        return None
    return f"the replay as recorded has {device.fidelity}"


def _raised(error: AllocsimError) -> str:
    name = "ConfigError" if isinstance(error, ConfigError) else type(error).__name__
    return f"{name} raised"


def _first(said: Answer, true: Answer, *, is_order_open: bool) -> str | None:
    """Return the first difference between replay and program, or None.

    is_order_open: frees that other streams delayed were completed by one wait.  A recording does
    not show the order of such frees, which affects inactive_split between two of them.
    """
    if said[0] != true[0]:
        return f"the replay ends with {said[0]!r}, the program with {true[0]!r}"
    for key in sorted({*said[1], *true[1]}):
        if is_order_open and key.startswith("inactive_split") and not key.endswith("current"):
            continue
        if said[1].get(key) != true[1].get(key):
            return f"{key}: {said[1].get(key)} by the replay, {true[1].get(key)} by the program"
    return None
