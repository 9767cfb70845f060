"""Driver calls of a replay, against the segment entries of the recording."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from allocsim import load, replay
from allocsim.core import LARGE_BUFFER, SMALL_BUFFER
from allocsim.recording import Action, Trace
from allocsim.replaying import prepare, trial_of
from allocsim.simulation import Setting, Start

TRACES = Path(__file__).parents[2] / "traces"
EXIT = TRACES / "h200" / "oom"


def entries(trace: Trace, action: Action) -> Counter[int]:
    """Return the number of entries of a kind, by bytes."""
    return Counter(int(size) for size in trace.size[trace.action == int(action)])


def calls(found: tuple[tuple[str, int, int], ...], call: str) -> dict[int, int]:
    return {size: n for name, size, n in found if name == call}


@pytest.mark.parametrize("name", ["default-exit", "small-exit"])
def test_replay_makes_the_recorded_cuda_mallocs_and_frees_by_size(name: str) -> None:
    recording = load(EXIT / f"{name}.npz.gz")
    [device] = replay(recording).devices
    [trace] = recording.devices
    assert calls(device.driver_calls, "malloc") == entries(trace, Action.SEGMENT_ALLOC)
    assert calls(device.driver_calls, "free") == entries(trace, Action.SEGMENT_FREE)


def test_replay_maps_the_recorded_ranges_handle_by_handle() -> None:
    recording = load(EXIT / "expandable-exit.npz.gz")
    [device] = replay(recording).devices
    [trace] = recording.devices
    mapped, unmapped = entries(trace, Action.SEGMENT_MAP), entries(trace, Action.SEGMENT_UNMAP)
    assert calls(device.driver_calls, "map") == mapped
    created = calls(device.driver_calls, "create")
    returned = calls(device.driver_calls, "unmap")
    assert set(created) == {SMALL_BUFFER, LARGE_BUFFER}
    # A failed request releases the handles that it created, without an entry.
    failed = sum(s * n for s, n in created.items()) - sum(s * n for s, n in mapped.items())
    assert failed >= 0
    assert sum(s * n for s, n in returned.items()) == failed + sum(
        size * n for size, n in unmapped.items()
    )


def test_initial_segments_are_not_driver_calls() -> None:
    """Recorded segments are not counted, nor segments for blocks that are requested again."""
    recording = load(TRACES / "counted" / "warm_start-torch2.15.npz.gz")
    [device] = replay(recording).devices
    [trace] = recording.devices
    assert calls(device.driver_calls, "malloc") == entries(trace, Action.SEGMENT_ALLOC)
    [prepared] = prepare(recording)
    setting = Setting("expandable_segments:True")
    drive = prepared.drive(setting, None)
    assert drive.start is Start.REALLOCATED
    trial = trial_of(drive, setting.conf)
    assert sum(n for call, _, n in trial.driver_calls if call == "map") == trial.num_device_alloc
