"""Trace events are valid, and together they equal the replay."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocsim.analysis.picture import Picture, picture_of
from allocsim.errors import RecordingError
from allocsim.metrics.curve import turning_rows
from allocsim.recording import Annotation, Mark, MarkKind, Recording, load, read_snapshot
from allocsim.report.formats import FORMATS, perfetto
from allocsim.workload import training

TRACES = Path(__file__).parents[3] / "traces"
OOM = TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"
NEEDED = {
    "M": {"args"},
    "C": {"args"},
    "b": {"id", "cat"},
    "e": {"id", "cat"},
    "i": {"s"},
    "X": {"dur"},
}
"""Keys that each phase has besides name, ph, ts, pid and tid."""


def document(recording: Recording) -> Any:
    file = io.BytesIO()
    FORMATS["perfetto"].write(recording, file)
    return json.loads(file.getvalue())


def check(events: list[dict[str, Any]]) -> None:
    """Check the rules of the format."""
    open_at: dict[tuple[Any, ...], int] = {}
    for event in events:
        assert {"name", "ph", "ts", "pid", "tid"} <= event.keys()
        assert NEEDED[event["ph"]] <= event.keys()
        assert isinstance(event["ts"], int)
        assert event["ts"] < 1 << 53  # the limit of JavaScript's exact integers
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
        if event["ph"] == "X":
            assert event["dur"] >= 0
        key = (event["pid"], event.get("cat"), event.get("id"), event["name"])
        if event["ph"] == "b":
            assert key not in open_at
            open_at[key] = event["ts"]
        elif event["ph"] == "e":
            assert open_at.pop(key) <= event["ts"]
    assert not open_at


@pytest.fixture(scope="module")
def oom() -> Any:
    return document(load(OOM))


@pytest.fixture(scope="module")
def picture() -> Picture:
    return picture_of(load(OOM))


def test_perfetto_has_only_events_of_the_format(oom: Any) -> None:
    check(oom["traceEvents"])
    assert oom["otherData"]["time"] == "microseconds, as recorded"
    assert oom["otherData"]["blocks left out"] == 0


def test_counters_are_the_memory_after_each_entry(oom: Any, picture: Picture) -> None:
    assert picture.trace.time_us is not None
    for name in ("reserved", "active", "allocated", "requested"):
        points = [e for e in oom["traceEvents"] if e["ph"] == "C" and e["name"] == name]
        values = getattr(picture.curve, name)
        assert max(point["args"]["bytes"] for point in points) == values.max()
        assert points[-1]["args"]["bytes"] == values[-1]
        at = np.searchsorted([p["ts"] for p in points], picture.trace.time_us[20_000], "right") - 1
        last = np.flatnonzero(picture.trace.time_us == picture.trace.time_us[20_000])[-1]
        assert points[at]["args"]["bytes"] == values[last]


def test_perfetto_has_a_slice_for_every_block_and_segment(oom: Any, picture: Picture) -> None:
    lives = picture.lives
    begun = [event for event in oom["traceEvents"] if event["ph"] == "b"]
    kinds = Counter(event["cat"] for event in begun)
    assert kinds["block"] == len(lives.blocks) == 9105
    assert kinds["segment"] == len(lives.segments) == 124
    held = [event["args"]["bytes"] for event in begun if event["cat"] == "block"]
    assert sum(held) == lives.blocks.size.sum()
    names = {event["name"] for event in begun if event["cat"] == "block"}
    assert "no stack recorded" in names
    assert "gpt.py:22 <module>" in names


def test_perfetto_error_is_an_instant_event_with_its_text(oom: Any) -> None:
    (event,) = (event for event in oom["traceEvents"] if event["ph"] == "i")
    assert event["args"]["message"].startswith("CUDA out of memory. Tried to allocate")
    assert event["args"]["entry"] == 26_059


def test_annotations_by_another_clock_are_left_out(oom: Any, picture: Picture) -> None:
    found = [event for event in oom["traceEvents"] if event.get("cat") == "annotation"]
    assert found
    first = picture.trace.time_us
    assert first is not None
    assert all(first[0] <= event["ts"] <= first[-1] + 1 for event in found)


def test_perfetto_entry_takes_a_microsecond_without_recorded_times() -> None:
    path = TRACES / "recordings" / "greedy_decoding-default-torch2.6.npz.gz"
    recording = load(path)
    annotated = replace(recording, annotations=(Annotation("a", "START", 0, 1),))
    found = document(annotated)
    check(found["traceEvents"])
    assert found["otherData"]["time"] == "numbers of entries"
    entries = len(recording.devices[0])
    assert max(event["ts"] for event in found["traceEvents"]) == entries
    assert not [event for event in found["traceEvents"] if event.get("cat") == "annotation"]


def test_perfetto_steps_and_phases_are_in_two_threads() -> None:
    recording = load(TRACES / "counted" / "gpt2-torch2.15.npz.gz")
    marks = [Mark(0, MarkKind.STEP, 0), Mark(0, MarkKind.PHASE, "forward")]
    marks += [Mark(900, MarkKind.PHASE, "backward"), Mark(2000, MarkKind.STEP, 1)]
    trace = replace(recording.devices[0], marks=tuple(marks))
    events = document(replace(recording, devices=(trace,)))["traceEvents"]
    check(events)
    spans = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [
        (1, "step 0", 0, 2000),
        (1, "step 1", 2000, len(trace) - 2000),
        (2, "forward", 0, 900),
        (2, "backward", 900, len(trace) - 900),
    ]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named == {1: "steps", 2: "phases"}


def test_perfetto_times_never_decrease_when_the_clock_steps_back() -> None:
    recording = training(steps=2, layers=2)
    trace = recording.devices[0]
    assert trace.time_us is not None
    times = trace.time_us.copy()
    times[100:] -= 60
    stepped = replace(recording, devices=(replace(trace, time_us=times),))
    check(document(stepped)["traceEvents"])


def test_perfetto_keeps_the_largest_blocks_of_a_long_recording(monkeypatch: Any) -> None:
    monkeypatch.setattr(perfetto, "_MOST_BLOCKS", 20)
    recording = training(steps=2, layers=2)
    lives = picture_of(recording).lives.blocks
    found = document(recording)
    check(found["traceEvents"])
    kept = [e for e in found["traceEvents"] if e["ph"] == "b" and e["cat"] == "block"]
    assert len(kept) == 20
    assert found["otherData"]["blocks left out"] == len(lives) - 20
    held = np.sort(
        lives.size * (np.minimum(lives.completed, len(recording.devices[0])) - lives.born)
    )
    ends = {e["id"]: e["ts"] for e in found["traceEvents"] if e["ph"] == "e"}
    output = sorted(e["args"]["bytes"] * (ends[e["id"]] - e["ts"]) for e in kept)
    assert output[-1] == held[-1]
    assert output[0] >= held[-21]


def test_perfetto_keeps_the_extremes_of_a_long_curve() -> None:
    values = np.random.default_rng(0).integers(0, 1000, 20_000)
    values[12_345], values[777] = 5000, -5000
    rows = turning_rows(values, 300)
    assert len(rows) <= 300
    assert {12_345, 777} <= set(rows.tolist())
    assert (np.diff(rows) > 0).all()
    few = np.array([3, 3, 4, 4, 4, 3])
    assert turning_rows(few, 300).tolist() == [0, 2, 5]
    assert turning_rows(np.zeros(0, np.int64), 300).tolist() == []


def test_perfetto_refuses_a_state_without_entries() -> None:
    state = read_snapshot("state", {"segments": [], "device_traces": [[]]}, 1 << 20)
    with pytest.raises(RecordingError, match="state: holds no entries"):
        document(state)
