"""Replays that take the place of several give the results of all of them.

The reference makes every replay by itself: the what-if, the proof, and one for each other plan.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from importlib import import_module
from itertools import islice
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from allocsim import CachingAllocator, replay
from allocsim.core import RELEASES, parse_conf
from allocsim.errors import AllocsimError, ConfigError, OutOfMemoryError
from allocsim.recording import Recording, read_snapshot
from allocsim.replaying import baseline, prepare
from allocsim.simulation import DeviceRun
from allocsim.units import GIB, MIB
from allocsim.verify.script import HANDLE
from tests.stress.what_ifs import BASE, Program, make_program, what_ifs

REPLAY = import_module("allocsim.replaying.replay")
FUNCTIONS = ("find_parting", "find_left_open")
WITHOUT_EFFECT = (
    "garbage_collection_threshold:0.99",
    "max_split_size_mb:100000",
    "roundup_power2_divisions:1",
)


def unmarked(program: Program) -> Recording:
    """Return the recording that PyTorch writes, which has entries and segments only."""
    made = CachingAllocator(
        program.device_memory, program.conf, program.release, base_address=BASE, record_history=True
    )
    live: dict[int, int | None] = {}
    with suppress(OutOfMemoryError):  # a program may end with it
        for op in program.ops:
            match op:
                case ["a", name, size, stream]:
                    live[name] = made.malloc(size, stream * HANDLE)
                case ["f", name]:
                    made.free(live.pop(name))
                case ["e"]:
                    made.empty_cache()
    return read_snapshot("a random program", made.snapshot(), 1 << 20)


def as_loaded(recording: Recording) -> Recording:
    """Return the recording without the results that earlier calls cached."""
    return replace(recording, devices=tuple(replace(trace) for trace in recording.devices))


def answer(recording: Recording, conf: str, memory: int | None) -> dict[str, object] | str:
    """Return every value of a what-if of a recording just loaded, or the text of its error."""
    try:
        (run,) = replay(as_loaded(recording), conf, device_memory=memory).devices
    except AllocsimError as error:
        return f"{type(error).__name__}: {error}"
    found = values_of(run)
    found["parting"], found["left_open"] = run.parting, run.left_open
    return found


def values_of(run: DeviceRun) -> dict[str, object]:
    values = {part.name: getattr(run, part.name) for part in fields(run)}
    timeline = values.pop("timeline")
    rows = np.stack((timeline.entry, timeline.allocated, timeline.reserved)).tolist()
    return {"rows": rows, **{name: each for name, each in values.items() if name not in FUNCTIONS}}


def one_by_one(recording: Recording, conf: str, memory: int | None) -> dict[str, object] | str:
    with (
        patch.object(REPLAY, "run_as_proof", lambda *_, **__: None),
        patch.object(REPLAY, "moments_of_calls", lambda *_: None),
    ):
        return answer(recording, conf, memory)


def cases(seed: int) -> Iterator[tuple[Recording, str, int | None]]:
    """Yield what-ifs of the program of `seed`: settings with and without an effect on it."""
    rng = random.Random(seed)
    release = rng.choice(list(RELEASES.values()))
    recording = unmarked(make_program(seed, release))
    if not recording.devices or not len(recording.devices[0]):
        return
    own = recording.settings.conf if recording.settings is not None else ""
    confs = [asked.conf for asked in islice(what_ifs(seed, release), 2)]
    for conf in (*confs, ",".join(filter(None, (own, rng.choice(WITHOUT_EFFECT))))):
        try:
            parse_conf(conf, release)
        except ConfigError:
            continue
        yield recording, conf, rng.choice((None, None, GIB, 300 * MIB))


def compare(seeds: range) -> tuple[int, int, int]:
    """Compare the what-ifs of programs.

    Return how many there were, how many gave the proof, and how many had other plans to replay.
    """
    proved: list[object] = []

    def counted(*args: Any, **rest: Any) -> object:
        proved.append(baseline.run_as_proof(*args, **rest))
        return proved[-1]

    n_compared = n_open = 0
    with patch.object(REPLAY, "run_as_proof", counted):
        for seed in seeds:
            for recording, conf, memory in cases(seed):
                expected = one_by_one(recording, conf, memory)
                assert answer(recording, conf, memory) == expected, (seed, conf, memory)
                n_compared += 1
                n_open += bool(prepare(recording)[0].open_plans)
    return n_compared, sum(found is not None for found in proved), n_open


def test_shared_replays_equal_separate_ones() -> None:
    n_compared, n_proved, n_open = compare(range(40))
    assert n_compared > 80
    assert n_proved > 12
    assert n_open > 12


@pytest.mark.slow
def test_shared_replays_equal_separate_ones_in_2000_programs() -> None:
    n_compared, n_proved, n_open = compare(range(100, 2100))
    assert n_compared > 4000
    assert n_proved > 500
    assert n_open > 500
