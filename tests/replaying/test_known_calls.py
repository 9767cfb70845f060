"""Known calls of a program, recorded or from hints, take precedence over inference.

The model runs each program, and counts the entries before each call as `record` does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from allocsim import CachingAllocator, Hints, explain, replay, tune
from allocsim.errors import ConfigError
from allocsim.recording import Recording
from allocsim.replaying import prepare
from allocsim.simulation import Setting
from allocsim.units import MIB

Written = Callable[[Any], Recording]


class Noted:
    """Running program, with the marks that `record` would write."""

    def __init__(self, memory: str = "4GiB", conf: str = "", version: str = "2.15") -> None:
        self.gpu = CachingAllocator(memory, conf, version, record_history=True)
        self.marks: list[dict[str, object]] = []
        self._made = {"torch_version": f"{version}.0", "conf_at_start": conf}

    def __call__(self, kind: str, value: object = None) -> None:
        """Note a call and make it."""
        entry = len(self.gpu.history)
        self.marks.append({"device": 0, "entry": entry, "kind": kind, "value": value})
        if kind == "empty_cache":
            self.gpu.empty_cache()
        elif kind == "_set_allocator_settings":
            self.gpu.set_allocator_settings(str(value))
        elif kind == "set_per_process_memory_fraction":
            assert isinstance(value, float)
            self.gpu.set_per_process_memory_fraction(value)

    def snapshot(self, *, is_noted: bool = True) -> dict[str, object]:
        """Return the recording, with the key that `record` adds or as PyTorch writes it."""
        made = {**self._made, "device_memory": self.gpu.device.total, "marks": self.marks}
        return {**self.gpu.snapshot(), **({"allocsim": made} if is_noted else {})}


def is_exact(recording: Recording, hints: Hints | None = None) -> bool:
    (run,) = replay(recording, hints=hints).devices
    return run.fidelity is not None and run.fidelity.is_exact


def test_marked_call_explains_a_release(written: Written) -> None:
    program = Noted()
    first, _ = program.gpu.malloc(40 * MIB), program.gpu.malloc(30 * MIB)
    program.gpu.free(first)
    program("empty_cache")
    program.gpu.malloc(40 * MIB)
    (run,) = replay(written(program.snapshot())).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    assert run.stats["num_alloc_retries"] == 0
    assert "a call of empty_cache: as recorded" in run.notes


def test_marked_call_that_released_nothing_releases_under_other_settings(written: Written) -> None:
    """A part of the 60 MiB block is in use, so the call returns nothing to the driver.

    Under a setting that does not split the block, the call returns it.
    """
    program = Noted()
    program.gpu.free(program.gpu.malloc(60 * MIB))
    program.gpu.malloc(30 * MIB)
    program("empty_cache")
    recording = written(program.snapshot())
    assert is_exact(recording)
    uncut = replay(recording, "max_split_size_mb:21").devices[0].stats
    assert uncut["reserved_bytes.all.current"] == 30 * MIB
    hints = Hints(empty_cache="never")
    kept = replay(recording, "max_split_size_mb:21", hints=hints).devices[0]
    assert kept.stats["reserved_bytes.all.current"] == 90 * MIB
    assert "no memory was released by empty_cache: as specified" in kept.notes


def test_call_between_the_entries_of_a_free_waits_for_it(written: Written) -> None:
    """The free waits for a stream, and the call waits for the free."""
    program = Noted()
    block = program.gpu.malloc(30 * MIB)
    program.gpu.record_stream(block or 0, 1)
    program.gpu.free(block)
    program("empty_cache")
    program.gpu.malloc(20 * MIB)
    (run,) = replay(written(program.snapshot())).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    assert run.stats["num_sync_all_streams"] == 1


def collecting() -> Noted:
    """Run a program that collects garbage at its last request: 60 % of its 50 MiB are cached."""
    program = Noted("100MiB", "garbage_collection_threshold:0.6")
    program("set_per_process_memory_fraction", 0.5)
    blocks = [program.gpu.malloc(size * MIB) for size in (10, 11, 12)]
    for block in blocks[:2]:
        program.gpu.free(block)
    program.gpu.malloc(13 * MIB)
    return program


def test_recorded_fraction_is_in_force_from_the_start(written: Written) -> None:
    recording = written(collecting().snapshot())
    (run,) = replay(recording).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    assert "a call of set_per_process_memory_fraction: as recorded" in run.notes
    (prepared,) = prepare(recording)
    assert prepared.drive(Setting(""), 100 * MIB).allocator.memory_limit == 50 * MIB
    own = Setting("per_process_memory_fraction:0.7")
    assert prepared.drive(own, 100 * MIB).allocator.memory_limit == 70 * MIB


@pytest.mark.parametrize("is_at_start", [True, False])
def test_call_replaces_the_limit_of_the_recorded_options(
    is_at_start: bool, written: Written
) -> None:
    """The call does not replace the limit of a what-if's setting (seed 206)."""
    program = Noted("100MiB", "per_process_memory_fraction:0.5")
    if not is_at_start:
        program.gpu.malloc(40 * MIB)
    program("set_per_process_memory_fraction", 1.0)
    program.gpu.malloc(60 * MIB)
    recording = written(program.snapshot())
    assert is_exact(recording)
    limited = replay(recording, "per_process_memory_fraction:0.55").devices[0]
    assert limited.stats["num_ooms"] == 1


def test_without_a_marked_fraction_no_limit_is_inferred(written: Written) -> None:
    """The device was full. A limit is excluded, because it would be marked."""
    program = Noted("100MiB", "max_split_size_mb:25,garbage_collection_threshold:0.8")
    blocks = [program.gpu.malloc(size, 4096) for size in (8 * MIB, MIB // 2)]
    for block in blocks:
        program.gpu.free(block)
    program.gpu.free(program.gpu.malloc(8 * MIB, 4096))
    other = program.gpu.malloc(MIB // 2)
    program.gpu.malloc(64 * MIB, 4096)
    program.gpu.free(other)
    program.gpu.malloc(8 * MIB)
    assert program.gpu.memory_stats()["num_alloc_retries"] == 1
    (prepared,) = prepare(written(program.snapshot()))
    assert prepared.plan.limit is None
    (run,) = replay(written(program.snapshot())).devices
    assert run.stats["num_alloc_retries"] == 1
    assert run.fidelity is not None
    assert run.fidelity.is_exact


def test_fraction_from_a_hint_equals_a_recorded_one(written: Written) -> None:
    recording = written(collecting().snapshot(is_noted=False))
    hints = Hints(memory_fraction=0.5)
    (run,) = replay(recording, device_memory="100MiB", hints=hints).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    assert "a call of set_per_process_memory_fraction: as specified" in run.notes


def changing() -> Noted:
    """Run a program that splits large blocks only before a change of settings."""
    program = Noted()
    program.gpu.free(program.gpu.malloc(60 * MIB))
    program.gpu.free(program.gpu.malloc(30 * MIB))
    program("_set_allocator_settings", "max_split_size_mb:21")
    program.gpu.malloc(30 * MIB)
    return program


def test_settings_change_at_their_mark(written: Written) -> None:
    program = changing()
    assert is_exact(written(program.snapshot()))
    # A snapshot names only the last settings, which never split these blocks.
    plain = written(program.snapshot(is_noted=False))
    (at,) = (int(str(mark["entry"])) for mark in program.marks)
    assert is_exact(plain, Hints(settings=((0, ""), (at, "max_split_size_mb:21"))))
    assert not is_exact(plain, Hints(settings=((0, ""),)))


def test_search_replays_every_setting_if_the_program_changes_settings(written: Written) -> None:
    """Settings with equal results before the change may differ after it."""
    recording = written(changing().snapshot())
    (prepared,) = prepare(recording)
    assert prepared.plan.changes == ("max_split_size_mb:21",)
    tuning = tune(recording, confs=["", "roundup_power2_divisions:4"])
    assert [row.same_as for row in tuning.rows] == [None, None]
    (device,) = explain(recording, hints=Hints(settings=((0, ""),)))
    assert device.device_run.fidelity is not None
    assert not device.device_run.fidelity.is_exact


def test_deleted_pool_releases_only_its_memory(written: Written) -> None:
    program = Noted()
    cached, pool = program.gpu.malloc(40 * MIB), (0, 1)
    program.gpu.free(cached)
    program.gpu.begin_allocate_to_pool(pool)
    inside = program.gpu.malloc(30 * MIB)
    program.gpu.end_allocate_to_pool(pool)
    program.gpu.free(inside)
    program("MemPool deleted", list(pool))
    program.gpu.release_pool(pool)
    program.gpu.empty_cache(pool)
    program.gpu.malloc(40 * MIB)
    (run,) = replay(written(program.snapshot())).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    assert run.stats["segment.all.freed"] == 1


@pytest.mark.parametrize(
    ("conf", "memory", "changes"),
    [
        ("", "80GiB", ()),
        ("", "300MiB", ()),
        ("expandable_segments:True", "300MiB", ()),
        ("", "500MiB", ("max_split_size_mb:22", "garbage_collection_threshold:0.5")),
    ],
)
def test_random_programs_with_marked_calls_replay_exactly(
    written: Written, conf: str, memory: str, changes: tuple[str, ...]
) -> None:
    for seed in range(3):
        draw = random.Random(seed)
        program, live = Noted(memory, conf), [0]
        program("set_per_process_memory_fraction", 0.9)
        for _ in range(150):
            x = draw.random()
            if x < 0.5 and len(live) < 12:
                live.append(program.gpu.malloc(draw.choice((1000, 3 * MIB, 19 * MIB))) or 0)
            elif x < 0.9 and len(live) > 1:
                program.gpu.free(live.pop(draw.randrange(1, len(live))))
            elif x < 0.93 and len(live) > 1:
                program.gpu.record_stream(live[-1], 1)
            elif x < 0.97:
                program("empty_cache")
            elif changes:
                program("_set_allocator_settings", draw.choice(changes))
        assert is_exact(written(program.snapshot())), seed


@pytest.mark.parametrize(
    ("hints", "sentence"),
    [
        ({"memory_fraction": 2.0}, r"memory fraction 2\.0 is out of range; expected 0 to 1"),
        ({"empty_cache": "often"}, "empty_cache 'often' is unknown; expected 'never' or"),
        ({"settings": ((99, ""),)}, "settings of entry 99: device 0 has no such entry"),
        ({"settings": ((1, "no_such:1"),)}, "no_such"),
    ],
)
def test_invalid_hints_are_refused(written: Written, hints: dict[str, Any], sentence: str) -> None:
    recording = written(collecting().snapshot())
    with pytest.raises(ConfigError, match=sentence):
        replay(recording, hints=Hints(**hints))
