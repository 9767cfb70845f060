"""The baseline of a search equals `replay` in device, peaks and retries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from allocsim import CachingAllocator, OutOfMemoryError, load, replay, tune
from allocsim.analysis.tune import Tuning
from allocsim.simulation import DeviceRun
from allocsim.units import MIB
from tests.recordings import phantom_recordings
from tests.tune.conftest import ragged

Write = Callable[..., Path]
TRACES = Path(__file__).parents[2] / "traces"
ALL = [path.relative_to(TRACES).as_posix() for path in phantom_recordings()]
FEW = (
    "recordings/cuda_graphs-tight-torch2.6.npz.gz",
    "recordings/cuda_graphs-expandable-torch2.6.npz.gz",
)


def figures(run: DeviceRun) -> dict[str, int | None]:
    stats = run.stats
    return {
        "device_memory": run.device_memory,
        "peak_reserved_bytes": run.peak_reserved_bytes,
        "peak_allocated_bytes": run.peak_allocated_bytes,
        "num_alloc_retries": stats["num_alloc_retries"],
        "num_ooms": len(run.ooms),
        "num_device_alloc": stats.get("num_device_alloc", 0),
        "num_device_free": stats.get("num_device_free", 0),
    }


def assert_same(path: Path) -> Tuning:
    """Compare `tune` without further settings with `replay`."""
    tuning, run = tune(path, confs=[]), replay(load(path))
    assert tuning.baseline.is_as_recorded
    assert tuning.warnings == run.warnings
    for (_, number, memory), trial, device in zip(
        tuning.parts, tuning.baseline.parts, run.devices, strict=True
    ):
        assert number == device.device
        found = {name: getattr(trial, name) for name in figures(device) if name != "device_memory"}
        assert {"device_memory": memory, **found} == figures(device)
    return tuning


@pytest.mark.parametrize("name", FEW)
def test_baseline_of_recordings_in_the_tree_is_as_recorded(name: str) -> None:
    assert_same(TRACES / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_baseline_of_every_recording_in_the_tree_is_as_recorded(name: str) -> None:
    assert_same(TRACES / name)


def full(gpu: CachingAllocator) -> None:
    """Record a full device, where each request of a new size empties the cache first."""
    for step in range(6):
        gpu.free(gpu.malloc((150 + step) * MIB))


def test_baseline_is_as_recorded_if_only_retries_show_the_device(write: Write) -> None:
    """Without a limit the run would differ: more reserved memory and no retries."""
    path = write(full, memory="256MiB")
    tuning = assert_same(path)
    assert tuning.baseline.num_alloc_retries == 3
    assert tuning.baseline.peak_reserved_bytes < 160 * MIB
    assert any("segments released before a new one suggest" in note for note in tuning.notes)
    assert all(row.memory_fraction is None for row in tune(path).rows)


def test_baseline_is_as_recorded_if_an_error_shows_the_device(write: Write) -> None:
    def program(gpu: CachingAllocator) -> None:
        full(gpu)
        with pytest.raises(OutOfMemoryError):
            gpu.malloc(300 * MIB)

    tuning = assert_same(write(program, memory="256MiB"))
    assert tuning.device_memory == 256 * MIB
    assert tuning.baseline.num_ooms == 1


def test_baseline_on_another_device_is_not_as_recorded(write: Write) -> None:
    path = write(full, memory="256MiB")
    tuning = tune(path, "155MiB", confs=[])
    assert tuning.device_memory == 155 * MIB
    assert not tuning.baseline.is_as_recorded
    assert tuning.baseline.num_ooms == 1


def test_baseline_keeps_the_device_of_each_recording(write: Write) -> None:
    """A recording without known device uses the others' if its run fits there."""

    def large(gpu: CachingAllocator) -> None:
        gpu.malloc(700 * MIB)

    paths = [
        write(full, memory="256MiB", name="full.pickle"),
        write(large, name="large.pickle"),
        write(lambda gpu: gpu.malloc(20 * MIB), name="small.pickle"),
    ]
    tuning = tune(paths, confs=[])
    assert tuning.baseline.is_as_recorded
    memories = [memory for _, _, memory in tuning.parts]
    assert memories == [tuning.device_memory, None, tuning.device_memory]
    alone = [tune(path, confs=[]).baseline.parts[0] for path in paths]
    for together, each in zip(tuning.baseline.parts, alone, strict=True):
        assert together.peak_reserved_bytes == each.peak_reserved_bytes
        assert together.num_alloc_retries == each.num_alloc_retries


@pytest.mark.parametrize("jobs", [1, 2])
def test_on_another_device_it_is_said_as_well_where_the_replay_parts(
    write: Write, jobs: int
) -> None:
    """Its settings are not recorded, and the defaults do not reproduce it."""
    whole = load(write(ragged(0), conf="large_segment_size_mb:64"))
    parted = replace(whole, settings=None, provenance=None)
    tuning = tune(parted, "1700MiB", confs=[], jobs=jobs)
    assert not tuning.baseline.is_as_recorded
    assert tuning.warnings == replay(parted).warnings != ()
    assert tune(whole, "1700MiB", confs=[], jobs=jobs).warnings == ()
