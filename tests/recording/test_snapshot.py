"""Snapshots of every layout are read; invalid values give one sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from allocsim.errors import RecordingError
from allocsim.recording import Action, Entry, Frame, RecordedSettings, load, write_npz
from allocsim.recording.recording import RELEASES
from allocsim.state import PENDING
from allocsim.units import MIB
from tests.recording.history import BASE, STACK, History, training_step, write


@pytest.mark.parametrize("release", RELEASES)
def test_snapshot_of_each_release_is_read_and_its_release_detected(
    release: str, tmp_path: Path
) -> None:
    recording = load(write(training_step().snapshot(release), tmp_path / "a.pickle"))
    assert release in recording.releases
    (trace,) = recording.devices
    actions = "segment_alloc alloc segment_alloc alloc free_requested free_completed alloc"
    assert [e.action.text for e in trace] == [*actions.split(), "free_requested"]
    small, large = trace.segments
    assert (small.is_small, large.is_small, small.pool_id) == (True, False, (0, 0))
    assert small.blocks[0].address == BASE
    assert small.blocks[1].address == BASE + 2048
    assert large.blocks[0].state == PENDING
    assert large.active_size == 3 * MIB
    assert large.allocated_size == 0
    assert recording.frame_table.stack(small.blocks[0].frames)[0] == Frame("model.py", "forward", 7)


def test_entry_at_the_limits_is_read(tmp_path: Path) -> None:
    trace = load(write(training_step().snapshot(), tmp_path / "a.pickle")).device(0)
    assert trace[1] == Entry(
        action=Action.ALLOC,
        addr=BASE,
        size=1000,
        stream=0,
        time_us=1001,
        frames=tuple(Frame(f["filename"], f["name"], f["line"]) for f in STACK),  # type: ignore[arg-type]
        pool_id=(0, 0),
        compile_context="N/A",
        user_metadata="",
    )
    assert trace[-1] == trace[7]
    assert trace.inputs().tolist() == [1, 3, 4, 5, 6, 7]
    with pytest.raises(IndexError):
        trace[8]
    with pytest.raises(ValueError, match="read-only"):
        trace.addr[0] = 1


def test_frame_line_minus_one_may_be_written_unsigned(tmp_path: Path) -> None:
    snapshot = training_step().snapshot()
    for entry in snapshot["device_traces"][0]:
        entry["frames"] = [{"filename": "??", "name": "alloc", "line": 18446744073709551615}]
    recording = load(write(snapshot, tmp_path / "a.pickle"))
    assert recording.device(0)[1].frames == (Frame("??", "alloc", -1),)
    write_npz(recording, tmp_path / "a.npz")
    assert load(tmp_path / "a.npz").device(0)[1].frames[0].line == -1


def test_snapshot_gives_settings_and_annotations(tmp_path: Path) -> None:
    recording = load(write(training_step().snapshot("2.9"), tmp_path / "a.pickle"))
    assert recording.settings == RecordedSettings(
        conf="max_split_size_mb:64",
        max_split_size=64 * MIB,
        garbage_collection_threshold=0.5,
        roundup_power2_divisions=((1, 0), (2, 4)),
        other=(("pinned_num_register_threads", 1), ("graph_capture_record_stream_reuse", False)),
    )
    assert [mark.name for mark in recording.annotations] == ["step"]


@pytest.mark.parametrize("written", [-1, (1 << 64) - 1, -MIB])
def test_no_limit_of_splits_may_be_written_signed_and_in_mib(tmp_path: Path, written: int) -> None:
    """Engines such as vLLM set the limit to the largest unsigned integer, rounded down to MiB."""
    snapshot = training_step().snapshot("2.9")
    snapshot["allocator_settings"]["max_split_size"] = written
    settings = load(write(snapshot, tmp_path / "a.pickle")).settings
    assert settings is not None
    assert settings.max_split_size is None


def test_oom_entry_has_free_bytes_in_place_of_an_address(tmp_path: Path) -> None:
    history = training_step()
    history.oom(512 * MIB, 7 * MIB)
    trace = load(write(history.snapshot(), tmp_path / "a.pickle")).device(0)
    assert (trace[-1].action, trace[-1].addr, trace[-1].size) == (Action.OOM, 7 * MIB, 512 * MIB)
    assert 8 in trace.inputs()


def test_list_of_segments_is_read_as_state_only(tmp_path: Path) -> None:
    recording = load(write(training_step().state("2.6"), tmp_path / "a.pickle"))
    assert recording.layout == "segment list"
    assert recording.settings is None
    assert len(recording.device(0).segments) == 2
    assert recording.releases == RELEASES[1:]


def test_snapshot_of_2_0_is_read(tmp_path: Path) -> None:
    recording = load(write(training_step().snapshot("2.0"), tmp_path / "a.pickle"))
    assert (recording.layout, recording.releases) == ("snapshot 2.0", ("2.0",))


def test_every_device_with_entries_or_segments_has_a_trace(tmp_path: Path) -> None:
    snapshot = training_step().snapshot()
    snapshot["device_traces"] = [[], [], snapshot["device_traces"][0], []]
    for segment in snapshot["segments"]:
        segment["device"] = 5
    recording = load(write(snapshot, tmp_path / "a.pickle"))
    assert [(t.device, len(t), len(t.segments)) for t in recording.devices] == [
        (2, 8, 0),
        (5, 0, 2),
    ]
    with pytest.raises(RecordingError, match="it has: 2, 5"):
        recording.device(0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("name", ["a.pickle", "a.json", "a"])
def test_format_is_detected_from_the_contents(
    packed: bool, as_json: bool, name: str, tmp_path: Path
) -> None:
    snapshot = training_step().snapshot()
    path = write(snapshot, tmp_path / name)
    plain = load(path)
    if as_json:
        path.write_text(json.dumps(snapshot))
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    again = load(path)
    assert list(again.device(0)) == list(plain.device(0))
    assert again.device(0).segments == plain.device(0).segments
    assert again.settings == plain.settings


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_snapshot_of_any_binary_protocol_is_read(protocol: int, tmp_path: Path) -> None:
    path = write(training_step().snapshot(), tmp_path / "a", protocol)
    assert len(load(path).device(0)) == 8


def test_pool_id_may_cross_a_frame_of_the_pickle(tmp_path: Path) -> None:
    history = History()
    for size in range(1, 4000):
        history.free(history.alloc(size))
    path = write(history.snapshot(), tmp_path / "a")
    assert load(path).device(0).pool_ids == ((0, 0),)


def entry(**change: Any) -> Any:
    def apply(snapshot: Any) -> None:
        row = snapshot["device_traces"][0][3]
        row.update(change)
        for key in [key for key, value in change.items() if value is ...]:
            del row[key]

    return apply


def segment(**change: Any) -> Any:
    return lambda snapshot: snapshot["segments"][1].update(change)


def block(**change: Any) -> Any:
    return lambda snapshot: snapshot["segments"][1]["blocks"][0].update(change)


def top(**change: Any) -> Any:
    return lambda snapshot: snapshot.update(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (entry(size="big"), "entry 3: the entry of device 0 has size 'big', expected an integer"),
        (entry(size=...), "entry 3: the entry of device 0 has no size, expected an integer"),
        (entry(size=-1), "entry 3: .* size -1, expected an integer from 0"),
        (entry(size=1.5), r"entry 3: .* size 1\.5"),
        (entry(size=True), "entry 3: .* size True"),
        (entry(addr=2**64), "entry 3: .* addr 18446744073709551616"),
        (entry(addr=None), "entry 3: .* addr None"),
        (entry(stream=[]), "entry 3: .* stream a list of 0"),
        (entry(action="malloc"), "entry 3: .* action 'malloc', expected one of alloc, free_req"),
        (entry(action=...), "entry 3: .* has no action, expected text"),
        (entry(action=[]), "entry 3: .* action a list of 0"),
        (entry(time_us="now"), "entry 3: .* time_us 'now'"),
        (entry(frames=3), "entry 3: .* frames 3, expected a list"),
        (entry(frames=[3]), "entry 3: a frame of .* is 3, expected a dictionary"),
        (entry(frames=[{"name": "f"}]), "entry 3: a frame of .* has no filename"),
        (entry(pool_id=7), "entry 3: .* pool_id 7, expected a pool id of two integers"),
        (entry(pool_id=[1, 2, 3]), "entry 3: .* pool_id a list of 3"),
        (entry(compile_context=4), "entry 3: .* compile_context 4, expected text"),
        (segment(address=-5), r"segments\[1\] has address -5"),
        (segment(segment_type="huge"), r"segments\[1\] has segment_type 'huge', expected small"),
        (segment(device="cuda"), r"segments\[1\] has device 'cuda'"),
        (segment(blocks={}), r"segments\[1\] has blocks a dict of 0, expected a list"),
        (segment(is_expandable=2), r"segments\[1\] has is_expandable 2"),
        (segment(segment_pool_id=[1]), r"segments\[1\] has segment_pool_id a list of 1"),
        (block(state="lost"), r"segments\[1\] block 0 has state 'lost', expected one of active"),
        (block(size=None), r"segments\[1\] block 0 has size None"),
        (top(segments=None), "has segments None, expected a list"),
        (top(segments=[1]), r"segments\[0\] is 1, expected a dictionary"),
        (top(device_traces=4), "has device_traces 4"),
        (top(device_traces=[4]), r"device_traces\[0\] is 4, expected a list"),
        (top(device_traces=[[4]]), "entry 0: the entry of device 0 is 4, expected a dictionary"),
        (top(allocator_settings=[]), "allocator_settings is a list of 0"),
        (top(allocator_settings={"max_split_size": "x"}), "max_split_size 'x'"),
        (top(allocator_settings={"roundup_power2_divisions": {"x": 1}}), "the key 'x'"),
        (top(external_annotations=[{}]), r"external_annotations\[0\] has no name"),
    ],
)
def test_invalid_value_is_named(change: Any, message: str, tmp_path: Path) -> None:
    snapshot = json.loads(json.dumps(training_step().snapshot()))
    change(snapshot)
    path = write(snapshot, tmp_path / "a.pickle")
    with pytest.raises(RecordingError, match=message) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [3, "text", None, {}, {"a": 1}, {"state_dict": {}}])
def test_pickle_of_another_value_is_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"expected a (snapshot|PyTorch memory snapshot)"):
        load(write(value, tmp_path / "a.pickle"))
