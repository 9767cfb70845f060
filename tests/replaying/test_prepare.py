"""Cached results of a recording, which do not change any result."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from weakref import ref

import pytest

from allocsim import CachingAllocator, Hints, load, replay
from allocsim.replaying import prepare
from allocsim.results import Recording
from allocsim.simulation import Drive
from allocsim.units import MIB

Recorded = Callable[..., Recording]

TRACES = Path(__file__).parents[2] / "traces"
OTHER = "max_split_size_mb:64"


def a_hole(a: CachingAllocator) -> None:
    """Free a block between two live ones."""
    a.malloc(12 * MIB)
    between = a.malloc(8 * MIB)
    a.malloc(4 * MIB)
    a.free(between)


@pytest.fixture
def drives(monkeypatch: pytest.MonkeyPatch) -> list[Drive]:
    """Collect every drive that starts."""
    begun: list[Drive] = []
    run = Drive.run

    def noted(drive: Drive, *arguments: object) -> None:
        begun.append(drive)
        run(drive, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Drive, "run", noted)
    return begun


def test_recording_is_proved_once_for_all_settings(
    drives: list[Drive],
) -> None:
    recording = load(TRACES / "gpt2-side-stream-torch2.15.pickle.gz")
    (first,) = replay(recording, OTHER).devices
    assert len(drives) == 1  # the what-if
    assert first.parting is None
    assert len(drives) == 2  # the baseline
    (second,) = replay(recording, "garbage_collection_threshold:0.8").devices
    assert second.parting is None and first.parting is None
    assert len(drives) == 3


def test_pickled_what_if_contains_its_proof(drives: list[Drive]) -> None:
    """The pickle does not contain the recording, which is several times as large."""
    recording = load(TRACES / "gpt2-side-stream-torch2.15.pickle.gz")
    run, as_recorded = replay(recording, OTHER), replay(recording)
    sent = pickle.dumps(run)
    assert len(sent) < 1.1 * len(pickle.dumps(as_recorded))
    drives.clear()
    (device,) = pickle.loads(sent).devices
    assert device.parting is None and device.stats == run.devices[0].stats
    assert not drives


def test_range_runs_the_proof_if_it_needs_quiet_moments(
    recorded: Recorded, drives: list[Drive]
) -> None:
    """With expandable segments only a replay finds quiet moments, and the proof is this replay."""
    (run,) = replay(recorded(a_hole, conf="expandable_segments:True"), OTHER).devices
    assert len(drives) == 1
    assert run.notes
    assert len(drives) >= 2
    drives.clear()
    assert run.parting is None
    assert not drives


def test_replay_as_recorded_always_runs(recorded: Recorded, drives: list[Drive]) -> None:
    recording = recorded(a_hole)
    for times in (1, 2, 3):
        fidelity = replay(recording).devices[0].fidelity
        assert fidelity is not None and fidelity.is_exact
        assert len(drives) == times


@pytest.mark.parametrize("conf", [None, OTHER])
@pytest.mark.parametrize(
    "name", ["gpt2-ragged-oom-torch2.15.pickle.gz", "gpt2-side-stream-torch2.15.pickle.gz"]
)
def test_second_call_gives_the_result_of_the_first(name: str, conf: str | None) -> None:
    recording = load(TRACES / name)
    first, second = replay(recording, conf), replay(recording, conf)
    uncached = replay(replace(recording), conf)
    assert repr(first) == repr(second) == repr(uncached)
    for run in (second, uncached):
        for device, before in zip(run.devices, first.devices, strict=True):
            assert device.stats == before.stats
            assert device.notes == before.notes
            assert device.parting == before.parting
            assert device.timeline.reserved.tolist() == before.timeline.reserved.tolist()


def test_other_release_or_hints_are_prepared_again(recorded: Recorded) -> None:
    recording = recorded(a_hole)
    (own,) = prepare(recording)
    assert prepare(recording) == (own,)
    (older,) = prepare(recording, torch_version="2.6")
    assert older is not own and older.release.version == "2.6"
    (never,) = prepare(recording, hints=Hints(empty_cache="never"))
    assert never is not older and not never.hints.empties


def full_once(a: CachingAllocator) -> None:
    """Fill the device, so that an oversize cached block is released."""
    a.free(a.malloc(60 * MIB))
    a.malloc(30 * MIB)
    a.malloc(24 * MIB)


def test_plan_is_read_under_the_release_that_wrote_the_recording(recorded: Recorded) -> None:
    recording = recorded(full_once, "100MiB", "max_split_size_mb:50")
    (own,) = prepare(recording)
    (other,) = prepare(recording, torch_version="2.6")
    assert own.is_own_release and not other.is_own_release
    assert other.plan is own.plan
    here, there = other.on(100 * MIB), own.on(100 * MIB)
    assert there is not own
    assert here.named_memory == there.named_memory == 100 * MIB
    assert here.plan.n_empty_cache == there.plan.n_empty_cache == 0


def test_cache_is_dropped_with_the_recording(recorded: Recorded) -> None:
    recording = recorded(a_hole)
    kept = ref(prepare(recording)[0])
    gc.collect()
    assert kept() is not None
    del recording
    gc.collect()
    assert kept() is None
