"""Problems for MiniMalloc: lives of blocks as half-open intervals."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings

from allocsim.errors import RecordingError
from allocsim.metrics import lifetimes_of
from allocsim.recording import Action, Recording, load, read_snapshot
from allocsim.report.formats import FORMATS
from tests.report.formats.recordings import recordings

TRACES = Path(__file__).parents[3] / "traces"
Buffer = tuple[str, int, int, int]


def buffers(recording: Recording) -> list[Buffer]:
    file = io.BytesIO()
    FORMATS["minimalloc"].write(recording, file)
    first, *rows = csv.reader(io.StringIO(file.getvalue().decode()))
    assert first == ["id", "lower", "upper", "size"]
    return [(name, int(lower), int(upper), int(size)) for name, lower, upper, size in rows]


def most_at_once(found: list[Buffer]) -> int:
    """Return the minimum that any packing needs."""
    moved: dict[int, int] = {}
    for _, lower, upper, size in found:
        moved[lower] = moved.get(lower, 0) + size
        moved[upper] = moved.get(upper, 0) - size
    held = most = 0
    for moment in sorted(moved):
        held += moved[moment]
        most = max(most, held)
    return most


@given(recordings())
@settings(max_examples=20)
def test_minimalloc_has_a_buffer_with_its_lifetime_for_each_request(recording: Recording) -> None:
    if not recording.devices or not len(recording.devices[0]):
        return
    trace = recording.devices[0]
    found = buffers(recording)
    assert len({name for name, *_ in found}) == len(found)
    assert all(0 <= lower < upper <= len(trace) + 1 for _, lower, upper, _ in found)
    assert all(size % 512 == 0 < size for *_, size in found)
    assert sorted(int(name) for name, *_ in found if name.isdigit()) == [
        number for number, entry in enumerate(trace) if entry.action == Action.ALLOC
    ]
    assert most_at_once(found) == lifetimes_of(trace).peak_bytes


def test_minimalloc_starts_earlier_blocks_at_0() -> None:
    found = buffers(load(TRACES / "counted" / "warm_start-torch2.15.npz.gz"))
    before = [buffer for buffer in found if buffer[0].startswith("before-")]
    assert len(before) == 60
    assert {lower for _, lower, _, _ in before} == {0}
    assert all(lower == int(name) + 1 for name, lower, _, _ in found if name.isdigit())


def test_minimalloc_refuses_two_devices_and_a_state_without_entries() -> None:
    entry = {"action": "alloc", "addr": 0, "size": 1, "stream": 0}
    two = read_snapshot("two", {"segments": [], "device_traces": [[entry], [entry]]}, 1 << 20)
    with pytest.raises(RecordingError, match="--device"):
        buffers(two)
    segment = {"device": 0, "address": 0, "total_size": 512, "stream": 0, "segment_type": "small",
               "blocks": [{"size": 512, "state": "inactive", "requested_size": 0, "address": 0}],
               "segment_pool_id": (0, 0), "is_expandable": False}  # fmt: skip
    state = read_snapshot("state", {"segments": [segment], "device_traces": [[]]}, 1 << 20)
    with pytest.raises(RecordingError, match="no lives"):
        buffers(state)
