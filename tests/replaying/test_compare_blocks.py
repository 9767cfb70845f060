"""Blocks of a recording are compared for overlaps, unless an exact replay makes it needless."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from allocsim import replay
from allocsim.core import CachingAllocator
from allocsim.errors import RecordingError
from allocsim.recording import Recording
from allocsim.recording.snapshot import read_snapshot
from allocsim.replaying import prepare
from allocsim.simulation import Observer
from allocsim.units import MIB
from tests.recording.history import BASE, History, training_step

OVER = "4000 bytes are allocated at .*, over the block at"


def snapshot_of_overlapping_blocks() -> dict[str, Any]:
    history = training_step()
    history.alloc(4000)
    history.entries[-1]["addr"] -= 512
    history.segments[BASE][2][1][0] -= 512
    history.segments[BASE][2][0][1] -= 512
    history.segments[BASE][2][1][1] += 512
    return history.snapshot()


def recording_of(snapshot: dict[str, Any]) -> Recording:
    return read_snapshot("x", snapshot, 1 << 20)


def of_two_devices() -> Recording:
    """Return a recording whose second device has overlapping blocks."""
    both, other = training_step().snapshot(), snapshot_of_overlapping_blocks()
    both["device_traces"][1] = other["device_traces"][0]
    both["segments"] += [{**segment, "device": 1} for segment in other["segments"]]
    return recording_of(both)


@pytest.mark.parametrize("conf", [None, "max_split_size_mb:20", "expandable_segments:True"])
def test_replay_refuses_overlapping_blocks_at_each_call(conf: str | None) -> None:
    recording = recording_of(snapshot_of_overlapping_blocks())
    for _ in range(2):
        with pytest.raises(RecordingError, match=OVER) as caught:
            replay(recording, conf)
        assert caught.value.entry == 8


def test_prepare_refuses_overlapping_blocks_after_a_replay_did() -> None:
    recording = recording_of(snapshot_of_overlapping_blocks())
    with pytest.raises(RecordingError, match=OVER):
        replay(recording)
    with pytest.raises(RecordingError, match=OVER):
        prepare(recording)


@pytest.mark.parametrize("conf", [None, "max_split_size_mb:200", "expandable_segments:True"])
def test_replay_refuses_segments_that_overlap_for_a_time(conf: str | None) -> None:
    """The replay itself is exact, because each segment is at its recorded address."""
    history = History()
    first = history.alloc(15 * MIB)
    history._next = BASE + 10 * MIB
    second = history.alloc(15 * MIB)
    history.free(first)
    history.free(second)
    history.empty_cache()
    with pytest.raises(RecordingError, match=r"bytes are allocated at .*, over the block at"):
        replay(recording_of(history.snapshot()), conf)


@pytest.mark.parametrize("device", [None, 0, 1])
def test_replay_of_one_device_refuses_overlaps_on_another(device: int | None) -> None:
    recording = of_two_devices()
    for _ in range(2):
        with pytest.raises(RecordingError, match=OVER):
            replay(recording, device=device)


def test_observers_do_not_see_a_recording_with_overlapping_blocks() -> None:
    class Seen(Observer):
        has_begun = False

        def began(self, allocator: CachingAllocator) -> None:
            self.has_begun = allocator is not None

    seen = Seen()
    with pytest.raises(RecordingError, match=OVER):
        replay(recording_of(snapshot_of_overlapping_blocks()), observers=[seen])
    assert not seen.has_begun


def test_exact_replay_makes_comparing_blocks_needless(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    module = sys.modules["allocsim.replaying.prepare"]
    monkeypatch.setattr(
        module, "refuse_overlaps", lambda _, trace, __: compared.append(trace.device)
    )
    first, second = (recording_of(training_step().snapshot()) for _ in range(2))
    assert replay(first).devices[0].parting is None
    replay(first, "expandable_segments:True")
    assert not compared
    replay(second, "expandable_segments:True")
    assert compared == [0]
