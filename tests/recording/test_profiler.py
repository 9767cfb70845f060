"""Traces of PyTorch's profiler in every release's format: detection and replay by size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim import lint as lint_of
from allocsim import replay
from allocsim.errors import RecordingError
from allocsim.recording import Action, FrameTable, Recording, find_defects, load, write_npz
from allocsim.recording.requests.builders import RequestColumns
from allocsim.units import MIB, format_size
from tests.recording.profiler_writer import (
    FORMS,
    START,
    Form,
    Profiled,
    random_program,
    trace_of,
    write_trace,
)
from tests.recording.test_hostile import refusal

SHARED = Path(__file__).parents[3] / "shared" / "profiler"
NEW = FORMS["2.0"]


def read(tmp_path: Path, value: object) -> Recording:
    return load(write_trace(tmp_path / "trace.json.gz", value))


def loaded(tmp_path: Path, profiled: Profiled, form: Form = NEW, *, first: int = 0) -> Recording:
    return read(tmp_path, trace_of(profiled, form, first=first))


@pytest.mark.parametrize("release", FORMS)
def test_profiler_trace_of_each_release_replays_to_the_allocated_bytes(
    release: str, tmp_path: Path
) -> None:
    profiled = random_program(3)
    recording = loaded(tmp_path, profiled, FORMS[release])
    assert recording.layout == "profiler trace"
    run = replay(recording).devices[0]
    allocated = [each["allocated"] for each in profiled.events]
    assert run.timeline.allocated.tolist() == allocated
    assert run.stats["allocation.all.allocated"] == sum(e["bytes"] > 0 for e in profiled.events)


@pytest.mark.parametrize("release", [name for name, form in FORMS.items() if form.has_addresses])
def test_trace_with_addresses_replays_to_the_recorded_segments(
    release: str, tmp_path: Path
) -> None:
    profiled = random_program(4)
    run = replay(loaded(tmp_path, profiled, FORMS[release])).devices[0]
    assert run.timeline.reserved.tolist() == [each["reserved"] for each in profiled.events]


def test_profiler_trace_gives_the_card(tmp_path: Path) -> None:
    recording = loaded(tmp_path, random_program(1), FORMS["2.6, HIP"])
    assert recording.provenance is not None
    assert recording.provenance.device_memory == 16 << 30
    assert replay(recording).device_memory == 16 << 30


def test_cards_that_differ_give_no_memory(tmp_path: Path) -> None:
    value: Any = trace_of(random_program(1), FORMS["2.1, with cards"])
    value["deviceProperties"].append({"id": 1, "name": "another", "totalGlobalMem": 8 << 30})
    for event in value["traceEvents"][50:100]:
        if event["name"] == "[memory]":
            event["args"]["Device Id"] = 1
    assert read(tmp_path, value).provenance is None


# -- missing data ----------------------------------------------------------------------------


def test_profiler_trace_has_notes_on_what_was_inferred(tmp_path: Path) -> None:
    recording = loaded(tmp_path, random_program(2))
    assert any("replayed by size" in note for note in recording.notes)
    assert any("the trace itself counts up to" in note for note in recording.notes)
    assert {finding.text for finding in find_defects(recording)} >= set(recording.notes)
    run = replay(recording)
    assert set(recording.notes) <= set(run.notes)
    fidelity = run.devices[0].fidelity
    assert fidelity is not None
    assert not fidelity.is_compared


def test_profiler_trace_that_begins_mid_run_has_the_earlier_blocks(tmp_path: Path) -> None:
    profiled = Profiled()
    kept, freed = profiled.malloc(30 * MIB), profiled.malloc(700_000)
    first = len(profiled.events)
    profiled.free(profiled.malloc(5 * MIB))
    profiled.free(freed)
    recording = loaded(tmp_path, profiled, first=first)
    assert any("a block (684.00 KiB) freed in the trace" in note for note in recording.notes)
    assert any("30.00 MiB more were allocated before" in note for note in recording.notes)
    run = replay(recording).devices[0]
    assert run.timeline.allocated.tolist()[2:] == [e["allocated"] for e in profiled.events[first:]]
    assert kept in profiled.live


def test_free_without_name_frees_the_latest_block_of_its_size(tmp_path: Path) -> None:
    profiled = Profiled()
    first, second = profiled.malloc(4 * MIB), profiled.malloc(4 * MIB)
    profiled.free(first)
    profiled.free(second)
    recording = loaded(tmp_path, profiled, FORMS["1.8.1"])
    (trace,) = recording.devices
    allocs = trace.addr[trace.action == Action.ALLOC].tolist()
    frees = trace.addr[trace.action == Action.FREE_COMPLETED].tolist()
    assert frees == allocs[::-1]
    assert any("frees name no block" in note for note in recording.notes)


def test_blocks_before_a_trace_have_the_recorded_total(tmp_path: Path) -> None:
    """A single block would be left whole if less than 1 MiB of its segment remained."""
    profiled = Profiled()
    for size in (20 * MIB, 1 * MIB, 512 * 600):
        profiled.malloc(size)
    first = len(profiled.events)
    profiled.free(profiled.malloc(5 * MIB))
    run = replay(loaded(tmp_path, profiled, first=first)).devices[0]
    assert run.peak_allocated_bytes == profiled.events[first]["allocated"]


def test_row_requested_twice_is_freed_between(tmp_path: Path) -> None:
    profiled = Profiled()
    profiled.free(profiled.malloc(4 * MIB))
    profiled.malloc(4 * MIB)
    del profiled.events[1]
    recording = loaded(tmp_path, profiled)
    assert any("1 events are missing" in note for note in recording.notes)
    assert recording.devices[0].count(Action.FREE_COMPLETED) == 1


def test_profiler_trace_without_memory_events_is_refused_with_advice(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json.gz", {"traceEvents": [{"ph": "X", "name": "add"}]})
    assert "a profiler trace without [memory] events; record with profile_memory=True" in refusal(
        path
    )
    write_trace(path, {"schemaVersion": 1, "traceEvents": []})
    assert "without [memory] events" in refusal(path)


@pytest.mark.parametrize(
    ("device", "name"), [(0, "CPU"), (12, "XPU"), (20, "a backend of its own"), (77, "device type")]
)
def test_advice_names_memory_of_other_processes(device: int, name: str, tmp_path: Path) -> None:
    value = trace_of(random_program(1), Form(device=device))
    path = write_trace(tmp_path / "a.json.gz", value)
    assert name in refusal(path)
    assert "expected some of CUDA or HIP" in refusal(path)


def test_out_of_memory_events_of_a_trace_are_counted_in_a_note(tmp_path: Path) -> None:
    value: Any = trace_of(random_program(1), NEW)
    value["traceEvents"].append({"ph": "i", "name": "[OutOfMemory]", "ts": START, "args": {}})
    assert any("out-of-memory error" in note for note in read(tmp_path, value).notes)


# -- stacks ---------------------------------------------------------------------------------


def call(name: str, first: int, last: int, **change: Any) -> dict[str, Any]:
    lasts = {"ts": START + first - 0.5, "dur": last - first + 0.75}
    event = {"ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": 1}
    return {**event, **lasts, **change}


def test_stack_of_an_event_has_the_calls_around_it(tmp_path: Path) -> None:
    profiled = Profiled()
    for _ in range(4):
        profiled.malloc(4 * MIB)
    value: Any = trace_of(profiled, NEW)
    value["traceEvents"] += [
        call("train.py(7): step", 0, 2),
        call("model.py(33): forward", 1, 2),
        call("aten::empty", 2, 2, cat="cpu_op"),
        call("<built-in method empty of type object at 0x7f12>", 1, 1),
        call("other.py(1): elsewhere", 0, 3, tid=2),
        call("kernel", 0, 3, cat="kernel"),
    ]
    (trace,) = read(tmp_path, value).devices
    stacks = [[(f.filename, f.line, f.name) for f in entry.frames] for entry in trace]
    step, forward = ("train.py", 7, "step"), ("model.py", 33, "forward")
    assert stacks == [
        [step],
        [("", 0, "<built-in method empty of type object>"), forward, step],
        [("", 0, "aten::empty"), forward, step],
        [],
    ]


def test_call_stack_of_an_old_operator_event_is_read(tmp_path: Path) -> None:
    profiled = Profiled()
    profiled.malloc(4 * MIB)
    value: Any = trace_of(profiled, FORMS["1.8.1"])
    beside = {"Call stack": "functional.py(9): conv;train.py(7): step"}
    value["traceEvents"] += [
        call("aten::conv2d", 0, 0, cat="Operator", args=beside, tid="1"),
        call("aten::outer", 0, 0, cat="Operator", ts=START - 9, dur=30),
    ]
    (trace,) = read(tmp_path, value).devices
    assert [frame.name for frame in trace[0].frames] == ["aten::conv2d", "conv", "step"]


def test_named_range_of_a_profiler_trace_is_an_annotation(tmp_path: Path) -> None:
    value: Any = trace_of(random_program(1), NEW)
    named = call("ProfilerStep#6", 5, 9, cat="user_annotation", ts=START + 5, dur=4)
    broken = [{**named, "ts": ts, "dur": dur} for ts, dur in ((None, 1), ("x", 2), (1, 10**400))]
    value["traceEvents"] += [named, *broken, {**named, "name": None}]
    marks = read(tmp_path, value).annotations
    assert [(mark.name, mark.stage, mark.time_us - START) for mark in marks] == [
        ("ProfilerStep#6", "START", 5),
        ("ProfilerStep#6", "END", 9),
    ]


# -- unsound traces ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"args": None}, "args is None, expected a dictionary"),
        ({"args": {}}, "has no Device Type"),
        ({"args": {"Device Type": 1, "Device Id": 0}}, "has no Bytes"),
        ({"ts": "soon"}, "has ts 'soon', expected a number"),
        ({"ts": float("nan")}, "has ts nan, expected microseconds"),
        ({"ts": -1}, "has ts -1.0, expected microseconds"),
        ({"ts": 1e300}, "expected microseconds"),
    ],
)
def test_invalid_event_is_named(change: Any, message: str, tmp_path: Path) -> None:
    value: Any = trace_of(random_program(1), NEW)
    value["traceEvents"][5] |= change
    text = refusal(write_trace(tmp_path / "a.json.gz", value))
    assert message in text
    assert "[memory] event 5" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Bytes", 10**400),
        ("Bytes", 1.5),
        ("Bytes", float("inf")),
        ("Addr", -1),
        ("Device Id", 10**6),
        ("Total Allocated", -5),
        ("Ev Idx", "3"),
    ],
)
def test_invalid_log_figure_is_named(name: str, value: object, tmp_path: Path) -> None:
    trace: Any = trace_of(random_program(1), NEW)
    trace["traceEvents"][5]["args"][name] = value
    assert f"has {name} " in refusal(write_trace(tmp_path / "a.json.gz", trace))


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [',
        '{"traceEvents": [{]}',
        '{"traceEvents": [{"ph": "X"}]',
        '{"traceEvents": [3]}',
        '{"a" 3, "traceEvents": []}',
        '{"traceEvents": [{"ph": "i", "name": "[memory]"}',
        '{"a": ' + "[" * 100_000 + ', "traceEvents": []}',
        '{"traceEvents": [{"name": ' + "[" * 100_000,
        '[{"ph": "X"}, 3]',
        '[{"ph": "X"}',
    ],
)
def test_profiler_trace_with_invalid_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert any(what in refusal(path) for what in ("profiler trace", "for the event", "no args"))


def test_profiler_trace_cut_anywhere_is_refused_in_one_sentence(tmp_path: Path) -> None:
    whole = json.dumps(trace_of(random_program(1, 20), NEW)).encode()
    path = tmp_path / "a.json"
    for length in range(20, len(whole), 101):
        path.write_bytes(whole[:length])
        with pytest.raises(RecordingError):
            load(path)


@given(st.lists(st.sampled_from(["alloc", "free", "lost"]), max_size=60), st.integers(0, 2**32))
def test_request_columns_free_only_requested_blocks(kinds: list[str], seed: int) -> None:
    """With any part of a trace missing, the rest can be replayed."""
    rng = np.random.default_rng(seed)
    live: set[int] = set()
    events = []
    for number, kind in enumerate(kinds):
        address = int(rng.integers(1, 6)) * 512
        moved = 512 if kind == "alloc" else -512
        if kind != "lost":
            events.append((number, address, moved))
    blocks = RequestColumns()
    for number, address, moved in events:
        if moved > 0:
            blocks.alloc(moved, address, time=number)
        else:
            blocks.free(-moved, address, time=number)
    trace = blocks.trace(0, FrameTable(), has_times=True)
    for action, address in zip(trace.action.tolist(), trace.addr.tolist(), strict=True):
        if action == Action.ALLOC:
            assert address not in live
            live.add(address)
        elif action == Action.FREE_COMPLETED:
            live.remove(address)


def test_column_file_keeps_missing_columns_missing(tmp_path: Path) -> None:
    recording = loaded(tmp_path, random_program(5))
    write_npz(recording, tmp_path / "a.npz")
    again = load(tmp_path / "a.npz")
    assert (again.layout, again.notes) == (recording.layout, recording.notes)
    assert again.is_requests
    assert list(again.devices[0]) == list(recording.devices[0])


# -- real traces -------------------------------------------------------------------------------

KNOWN = {
    "bert-small.json.gz": ("profiler trace", 354),
    "graph-capture.json.gz": ("profiler trace", 1672),
    "hta-memory-timeline.json.gz": ("memory timeline", 10680),
    "qwen-0.5b-chat.json.gz": ("profiler trace", 3885),
    "resnet50-old-form.json.gz": ("profiler trace", 12420),
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs traces of other people")
@pytest.mark.parametrize("name", KNOWN)
def test_real_profiler_trace_is_read(name: str) -> None:
    recording = load(SHARED / name)
    assert (recording.layout, len(recording.devices[0])) == KNOWN[name]
    assert not [finding for finding in find_defects(recording) if finding.severity == "error"]


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs traces of other people")
@pytest.mark.parametrize("name", KNOWN)
def test_real_profiler_trace_replays(name: str) -> None:
    """Close to the trace's own totals; streams, pools and earlier memory are not recorded."""
    recording = load(SHARED / name)
    run = replay(recording).devices[0]
    assert run.stopped_at is None
    counted = next((note for note in recording.notes if "the trace itself counts" in note), None)
    if counted is not None:
        assert format_size(run.peak_allocated_bytes) in counted


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs traces of other people")
def test_real_profiler_traces_are_all_tested() -> None:
    assert {path.name for path in SHARED.iterdir()} == set(KNOWN)


def merged(tmp_path: Path, device: int = 0) -> Recording:
    """Return two processes in one trace at the same addresses, as merged from two ranks."""
    first: Any = trace_of(random_program(3), NEW)
    second: Any = trace_of(random_program(4), NEW)
    for event in second["traceEvents"]:
        event["pid"] = 4712
        if "Device Id" in event.get("args", {}):
            event["args"]["Device Id"] = device
    both = [*first["traceEvents"], *second["traceEvents"]]
    return read(tmp_path, {**first, "traceEvents": both})


def test_two_processes_of_one_trace_are_separate_devices(tmp_path: Path) -> None:
    """Each has a separate allocator; merged, one would free the other's blocks."""
    found = replay(merged(tmp_path))
    alone = [replay(loaded(tmp_path, random_program(seed))).devices[0] for seed in (3, 4)]
    assert [each.device for each in found.devices] == [0, 1]
    for each, expected in zip(found.devices, alone, strict=True):
        assert each.timeline.allocated.tolist() == expected.timeline.allocated.tolist()


def test_lint_says_that_a_trace_holds_two_processes(tmp_path: Path) -> None:
    recording = merged(tmp_path)
    said = [note for note in recording.notes if "processes" in note]
    assert len(said) == 1
    assert said[0].startswith("the trace holds the events of 2 processes (")
    assert said[0].endswith("device 0 of process 4712 is device 1 here")
    findings = [each for each in lint_of(recording).findings if each.check == "processes"]
    assert [each.severity for each in findings] == ["warning"]
    assert findings[0].text.startswith("the file holds the events of 2 processes: ")


def test_processes_on_different_devices_keep_their_numbers(tmp_path: Path) -> None:
    recording = merged(tmp_path, device=3)
    assert [trace.device for trace in recording.devices] == [0, 3]
    (said,) = (note for note in recording.notes if "processes" in note)
    assert "here" not in said
