"""Users' own rows: CSV, JSON Lines, a JSON list; columns by name."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocsim import replay
from allocsim.errors import RecordingError
from allocsim.recording import Action, Recording, load
from tests.recording.test_hostile import refusal

TABLE = """action,addr,size,stream,time_us,name
alloc,0x7f0000000000,4194304,0,1000,model.py forward
alloc,0x7f0000400000,1048576,7,1010,
free,0x7f0000000000,,0,1020,
"""


def read(tmp_path: Path, text: str) -> Recording:
    path = tmp_path / "rows"
    path.write_text(text)
    return load(path)


def entries(recording: Recording) -> list[tuple[str, int, int, int]]:
    (trace,) = recording.devices
    return [(e.action.text, e.addr, e.size, e.stream) for e in trace]


def test_csv_is_read(tmp_path: Path) -> None:
    recording = read(tmp_path, TABLE)
    first = 0x7F0000000000
    assert recording.layout == "rows"
    assert entries(recording) == [
        ("alloc", first, 4194304, 0),
        ("alloc", 0x7F0000400000, 1048576, 7),
        ("free_requested", first, 4194304, 0),
        ("free_completed", first, 4194304, 0),
    ]
    (trace,) = recording.devices
    assert [entry.time_us for entry in trace] == [1000, 1010, 1020, 1020]
    assert [[f.name for f in entry.frames] for entry in trace][:2] == [["model.py forward"], []]
    assert replay(recording).devices[0].stats["allocated_bytes.all.peak"] == 5 << 20


Rows = list[dict[str, Any]]


def csv_of(rows: Rows) -> str:
    lines = [rows[0], *(row.values() for row in rows)]
    return "\n".join(",".join(map(str, line)) for line in lines)


FORMS: dict[str, Callable[[Rows], str]] = {
    "csv": csv_of,
    "semicolons": lambda rows: csv_of(rows).replace(",", ";"),
    "tabs": lambda rows: csv_of(rows).replace(",", "\t"),
    "windows": lambda rows: "\ufeff" + csv_of(rows).replace("\n", "\r\n"),
    "lines": lambda rows: "\n".join(map(json.dumps, rows)) + "\n",
    "list": json.dumps,
}


@pytest.mark.parametrize("form", FORMS)
def test_csv_json_and_lines_give_equal_recordings(form: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"action": "alloc", "size": 1000, "id": "a"},
        {"action": "alloc", "size": 3000, "id": "b"},
        {"action": "free", "size": 1000, "id": "a"},
        {"action": "alloc", "size": 500, "id": "a"},
    ]
    found = entries(read(tmp_path, FORMS[form](rows)))
    assert [row[:1] + row[2:3] for row in found] == [
        ("alloc", 1000), ("alloc", 3000), ("free_requested", 1000), ("free_completed", 1000),
        ("alloc", 500),
    ]  # fmt: skip


def test_json_object_is_a_recording_of_one_request(tmp_path: Path) -> None:
    recording = read(tmp_path, '{"action": "malloc", "bytes": 5, "ptr": 64}')
    assert entries(recording) == [("alloc", 64, 5, 0)]


def test_free_in_two_parts_is_pending_between_them(tmp_path: Path) -> None:
    recording = read(
        tmp_path,
        "action,id,size\nalloc,a,1048576\nfree_requested,a,\nalloc,b,1048576\nfree_completed,a,\n",
    )
    assert [entry.action for entry in recording.devices[0]] == [
        Action.ALLOC, Action.FREE_REQUESTED, Action.ALLOC, Action.FREE_COMPLETED,
    ]  # fmt: skip
    assert replay(recording).devices[0].stats["active_bytes.all.peak"] == 2 << 20


def test_rows_of_driver_calls_are_ignored(tmp_path: Path) -> None:
    recording = read(
        tmp_path,
        "action,addr,size\nsegment_alloc,0,2097152\nalloc,0,512\nsnapshot,0,0\nalloc,512,0\n",
    )
    assert len(recording.devices[0]) == 1
    assert any("2 rows of other actions are passed over" in note for note in recording.notes)


def test_rows_of_several_devices_become_separate_traces(tmp_path: Path) -> None:
    recording = read(tmp_path, "action,id,size,device\nalloc,a,512,3\nalloc,a,1024,0\n")
    assert [(t.device, int(t.size[0])) for t in recording.devices] == [(0, 1024), (3, 512)]


def test_rows_may_have_frames_as_in_snapshots(tmp_path: Path) -> None:
    frames = [{"filename": "a.py", "name": "f", "line": 3}]
    rows = [{"action": "alloc", "size": 512, "id": n, "frames": frames} for n in range(2)]
    (trace,) = read(tmp_path, json.dumps(rows)).devices
    assert [frame.line for frame in trace[1].frames] == [3]
    assert len(trace.frame_table) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("action,size,id\n", "holds no row that allocates"),
        ("action,size,id\nfree,1,a\n", "holds no row that allocates"),
        ("action,size\nalloc,1\n", "row 0 has no addr, expected the block's address or id"),
        ("action,id\nalloc,a\n", "row 0 allocates without a size"),
        ("action,id,size\nalloc,a,many\n", "row 0 has size 'many', expected a whole number"),
        ("action,id,size\nalloc,a,-5\n", "row 0 has size '-5'"),
        ("action,id,size\nalloc,a," + "9" * 400 + "\n", "row 0 has size '999"),
        ("action,id,size\nlease,a,5\n", "row 0 has action 'lease', expected alloc, free"),
        ("action,id,size,device\nalloc,a,5,4096\n", "row 0 has device"),
        ("action,id,size\nalloc,a,5,6\n", "a row with more fields than columns"),
        ("action,id,size\nalloc,a,5\n" + '"' + "x" * 200_000, "is no sound CSV"),
        ('{"action": "alloc", "size": 1.5, "id": 1}', "row 0 has size 1.5"),
        ('{"action": "alloc", "size": true, "id": 1}', "row 0 has size True"),
        ('{"action": "alloc", "size": 1, "id": []}', "row 0 has id a list"),
        ('{"action": 5, "size": 1, "id": 1}', "row 0 has action 5"),
        ('{"action": "alloc", "size": 1, "id": 1}\n{"action": \n', "line 2 is no sound JSON"),
        ('{"action": "alloc", "size": 1, "id": 1}\n{"a": ' + "[" * 100_000, "line 2 is no sound"),
        ('[{"action": "alloc", "size": 1, "id": 1}, 3]', "row 1 is 3, expected a dictionary"),
    ],
)
def test_invalid_row_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    assert message in refusal(path)


def test_csv_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"action,id,size\nalloc,\xff\xff,5\n")
    assert "no UTF-8" in refusal(path)


_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "action": st.sampled_from(["alloc", "free", "free_requested", "free_completed"]),
            "id": st.sampled_from("abc"),
            "size": st.integers(0, 1 << 22),
        }
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40)
@given(_ROWS)
def test_rows_load_and_replay_or_are_refused(rows: list[dict[str, Any]]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(rows))
        file.flush()
        try:
            recording = load(file.name)
        except RecordingError:
            return
    replay(recording)
