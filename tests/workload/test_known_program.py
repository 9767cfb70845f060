"""Programs with known rows: copied results equal played ones."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from allocsim.core import FREE, IS_COMPILED, MALLOC, ReplayAllocator
from allocsim.ownership.blocks import blocks_of
from allocsim.recording import Action, FrameTable, MarkKind, Provenance, Recording
from allocsim.replaying import prepare, prepare_made, replay_prepared, run_as_made
from allocsim.simulation import DeviceRun, Period
from allocsim.units import GIB, KIB, MIB
from allocsim.workload import EMPTY_CACHE, KnownProgram, Played, peak_of_known, play_known

CONFS = ["", "expandable_segments:True", "max_split_size_mb:21", "garbage_collection_threshold:0.5"]


class Writer:
    """Builder of a program, row by row."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.stretches: list[int] = []
        self.n_blocks = 0

    def ask(self, size: int) -> int:
        self.rows.append((MALLOC, self.n_blocks, size, -1))
        self.n_blocks += 1
        return self.n_blocks - 1

    def free(self, block: int) -> None:
        self.rows.append((FREE, block, 0, -1))

    def program(self) -> KnownProgram:
        kind, block, size, stack = np.array(self.rows, dtype=np.int64).T
        return KnownProgram(kind, block, size, stack, tuple(self.stretches))


def that_serves(
    seed: int, *, tokens: int = 24, cache: int = 3 * MIB, grows: int = 2 * KIB
) -> KnownProgram:
    """Return a program whose layers keep a cache that grows with each token.

    The cache is in the large pool while it is large enough.  The blocks that a token passes to the
    next one alternate between two addresses.
    """
    random = Random(seed)
    writer = Writer()
    weights = [writer.ask(random.randrange(1, 5) * 700 * KIB) for _ in range(4)]
    writer.rows.append((EMPTY_CACHE, 0, 0, -1))
    caches = [writer.ask(cache) for _ in range(3)]
    scratch = [random.randrange(1, 200) * KIB + random.randrange(512) for _ in range(6)]
    orders = [random.sample(range(3 + layer), 3 + layer) for layer in range(3)]
    passed = writer.ask(5 * KIB)
    for token in range(tokens):
        writer.stretches.append(len(writer.rows))
        for layer, old in enumerate(caches):
            held = [writer.ask(size) for size in scratch[: 2 + layer]]
            held.append(writer.ask(4 * KIB + token))  # grows by less than the rounding
            caches[layer] = writer.ask(cache + grows * (token + 1))
            writer.free(old)
            for number in orders[layer]:
                writer.free(held[number])
        got, passed = passed, writer.ask(5 * KIB)
        writer.free(got)
    writer.stretches.append(len(writer.rows))
    for block in (*caches, *weights, passed):
        writer.free(block)
    return writer.program()


def played(
    program: KnownProgram, conf: str, memory: int = GIB
) -> tuple[Played, Recording, DeviceRun | None]:
    allocator = ReplayAllocator(memory, conf, base_address=1 << 44, record_history=True)
    found = play_known(program, allocator)
    made = Provenance(
        torch_version="2.15.0",
        device_name="a card",
        device_memory=memory,
        is_phantom=True,
        oom_text=found.oom_text,
    )
    table = FrameTable((), np.array([], np.int32), np.array([0], np.int64))
    marks = found.marks(-1, np.flatnonzero(program.kind == EMPTY_CACHE).tolist())
    recording = found.recording("program", table, made, marks)
    if found.oom_text:
        return found, recording, None
    (prepared,) = prepare_made(recording)
    run = run_as_made(prepared, found.allocator, found.moved, found.peak, found.peak_device_bytes)
    return found, recording, run


def rows_of(found: Played) -> NDArray[np.int64]:
    """Return the number of the program's row that caused each entry of the history."""
    return np.repeat(np.arange(len(found.n_before) - 1), np.diff(found.n_before))


def same(one: object, other: object, name: str = "") -> None:
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        assert np.array_equal(one, other), name
    elif is_dataclass(one):
        names = [field.name for field in fields(one) if field.compare]
        for each in [*names, *(["parting"] if isinstance(one, DeviceRun) else [])]:
            same(getattr(one, each), getattr(other, each), f"{name}.{each}")
    elif isinstance(one, tuple) and isinstance(other, tuple):
        assert len(one) == len(other), name
        for number, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, f"{name}[{number}]")
    else:
        assert one == other, name


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cache", [3 * MIB, 900 * KIB])
def test_copied_stretch_equals_a_simulated_one(seed: int, conf: str, cache: int) -> None:
    """The cache of the second program outgrows the small pool during the run."""
    program = that_serves(seed, cache=cache)
    _, recording, run = played(program, conf)
    _, whole, run_of_whole = played(replace(program, stretches=()), conf)
    same(recording.devices, whole.devices)
    same(run, run_of_whole)


@pytest.mark.parametrize("conf", CONFS)
def test_played_program_equals_the_replay_of_its_recording(conf: str) -> None:
    _, recording, run = played(that_serves(7), conf)
    (prepared,) = prepare(recording)
    (replayed,) = replay_prepared((prepared,)).devices
    same(run, replayed)


@pytest.mark.skipif(IS_COMPILED, reason="a method of a compiled class cannot be watched")
def test_repeated_stretches_are_mostly_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = []
    play = ReplayAllocator.play

    def counted(
        self: ReplayAllocator, steps: Any, waiting: Any, moved: list[int], places: list[int]
    ) -> object:
        found = play(self, steps, waiting, moved, places)
        taken.append(len(moved))
        return found

    monkeypatch.setattr(ReplayAllocator, "play", counted)
    program = that_serves(3, tokens=100)
    played(program, "")
    assert sum(taken) < len(program.kind) // 2


def test_different_stretch_is_simulated() -> None:
    writer = Writer()
    for token in range(6):
        writer.stretches.append(len(writer.rows))
        writer.free(writer.ask(64 * KIB if token != 4 else 640 * KIB))
    writer.stretches.append(len(writer.rows))
    _, recording, _ = played(writer.program(), "")
    assert sorted(set(recording.devices[0].size.tolist())) == [64 * KIB, 640 * KIB, 2 * MIB]


def test_oom_in_a_stretch_ends_the_program() -> None:
    program = that_serves(1, tokens=60, grows=256 * KIB)
    found, recording, _ = played(program, "", memory=90 * MIB)
    other, whole, _ = played(replace(program, stretches=()), "", memory=90 * MIB)
    assert found.oom_text.startswith("CUDA out of memory")
    assert int(rows_of(found)[-1]) > program.stretches[20]
    assert found.oom_text == other.oom_text
    same(recording.devices, whole.devices)


@pytest.mark.parametrize("memory", [GIB, 90 * MIB, 30 * MIB])
@pytest.mark.parametrize("part", [0, 0.3, 0.8])
def test_peak_without_history_equals_that_of_the_recording(part: float, memory: int) -> None:
    program = that_serves(5, tokens=60, grows=256 * KIB)
    since = int(part * len(program.kind))
    found, recording, _ = played(program, "", memory=memory)
    (trace,) = recording.devices
    changes = (trace.action == Action.SEGMENT_ALLOC, trace.action == Action.SEGMENT_FREE)
    reserved = np.cumsum(np.where(changes[0], trace.size, 0) - np.where(changes[1], trace.size, 0))
    # The last entry of a row, and of the row before the first counted one.
    row = rows_of(found)
    last = np.append(np.flatnonzero(np.diff(row)), len(row) - 1)
    counts = row[last] >= (since if row[-1] >= since else 0)
    allocator = ReplayAllocator(memory, base_address=1 << 44)
    peak, is_out_of_memory = peak_of_known(program, allocator, since)
    assert is_out_of_memory == bool(found.oom_text)
    assert peak == reserved[last][counts].max()


def test_period_of_a_program_equals_that_of_its_recording() -> None:
    writer = Writer()
    kept = [writer.ask(size * MIB) for size in range(1, 4)]
    writer.rows.append((EMPTY_CACHE, 0, 0, -1))
    for _ in range(9):
        writer.stretches.append(len(writer.rows))
        for size in range(20):
            writer.free(writer.ask((size + 1) * 100 * KIB))
        writer.free(kept.pop(0))
        kept.append(writer.ask(3 * MIB))
    writer.stretches.append(len(writer.rows))
    for block in kept:
        writer.free(block)
    found, recording, _ = played(writer.program(), "")
    (prepared,) = prepare_made(recording)
    # The first three steps free the older blocks.
    assert prepared.period == found.period() == Period(first=129, length=42, count=6)


@pytest.mark.parametrize("conf", CONFS)
def test_lifetimes_of_blocks_equal_those_of_the_recording(conf: str) -> None:
    found, recording, run = played(that_serves(3, cache=900 * KIB), conf)
    assert run is not None
    (trace,) = recording.devices
    same(blocks_of(trace, (), run.timeline, found.lives()), blocks_of(trace, (), run.timeline))


def test_blocks_after_an_out_of_memory_error_have_no_lifetimes() -> None:
    found, recording, _ = played(that_serves(30), "", memory=24 * MIB)
    assert found.oom_text
    lives = found.lives()
    (trace,) = recording.devices
    assert lives.born.tolist() == np.flatnonzero(trace.action == Action.ALLOC).tolist()
    assert np.all(lives.freed > lives.born)


def test_marks_are_before_the_entries_of_their_rows() -> None:
    program = that_serves(2)
    found, recording, _ = played(program, "")
    (emptied,) = np.flatnonzero(program.kind == EMPTY_CACHE).tolist()
    marks = found.marks(emptied + 1, [emptied])
    assert [mark.kind for mark in marks] == [MarkKind.EMPTY_CACHE, MarkKind.PEAK_RESET]
    assert recording.devices[0][marks[1].entry - 1].size != 3 * MIB
    assert recording.devices[0][marks[1].entry + 1].size == 3 * MIB
