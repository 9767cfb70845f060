"""CSV, JSON Lines and Parquet have every entry as recorded, and agree."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from allocsim.errors import RecordingError
from allocsim.recording import Action, Recording, load, read_snapshot
from allocsim.report.formats import COLUMNS, FORMATS
from allocsim.workload import oom, training
from tests.report.formats.recordings import recordings

TRACES = Path(__file__).parents[3] / "traces"
GPT2 = TRACES / "counted" / "gpt2-torch2.15.npz.gz"


def written(name: str, recording: Recording) -> bytes:
    file = io.BytesIO()
    FORMATS[name].write(recording, file)
    return file.getvalue()


def of_csv(recording: Recording) -> list[dict[str, Any]]:
    text = written("csv", recording).decode()
    rows: list[dict[str, Any]] = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        assert tuple(row) == COLUMNS
        rows.append({name: value for name, value in row.items() if value != ""})
    return rows


def of_lines(recording: Recording) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written("jsonl", recording).splitlines()]


def requests_in(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the requests and frees of the rows."""
    names = ("device", "addr", "size", "stream")
    return [
        (row["action"], *(int(row[name]) for name in names))
        for row in rows
        if row["action"] in ("alloc", "free_requested", "free_completed")
    ]


def requests_of(recording: Recording) -> list[tuple[Any, ...]]:
    asked = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    return [
        (entry.action.text, trace.device, entry.addr, entry.size, entry.stream)
        for trace in recording.devices
        for entry in trace
        if entry.action in asked
    ]


@given(recordings())
@settings(max_examples=30)
def test_csv_and_json_lines_hold_every_request(recording: Recording) -> None:
    if not recording.devices or not len(recording.devices[0]):
        return
    wanted = requests_of(recording)
    assert requests_in(of_csv(recording)) == wanted
    assert requests_in(of_lines(recording)) == wanted


def test_row_has_the_keys_and_values_of_pytorchs_entry() -> None:
    recording = training(steps=1, layers=2)
    trace = recording.devices[0]
    rows = of_lines(recording)
    assert len(rows) == len(trace)
    assert [row["entry"] for row in rows] == list(range(len(trace)))
    for number in (0, 1, 50):
        entry, row = trace[number], rows[number]
        assert row["action"] == entry.action.text
        assert (row["addr"], row["size"], row["time_us"]) == (entry.addr, entry.size, entry.time_us)
        assert row["pool_id"] == "0:0"
        assert (row["compile_context"], row["user_metadata"]) == ("N/A", "")
        file, _, name = row["name"].partition(" ")
        assert f"{file} {name}" in [f"{f.filename}:{f.line} {f.name}" for f in entry.frames]


def test_row_of_an_error_has_free_bytes_and_no_address() -> None:
    recording = oom()
    (row,) = (row for row in of_lines(recording) if row["action"] == "oom")
    assert row["device_free"] == recording.devices[0][row["entry"]].addr
    assert "addr" not in row


def test_missing_value_is_an_empty_cell() -> None:
    recording = load(TRACES / "recordings" / "greedy_decoding-default-torch2.6.npz.gz")
    first = of_csv(recording)[0]
    assert {"time_us", "pool_id", "compile_context", "user_metadata"}.isdisjoint(first)


def hostile() -> Recording:
    entry = {"action": "alloc", "addr": 512, "size": 512, "stream": 0}
    frames = [[{"filename": '=cmd|"/c calc"!A0', "name": "f\n,", "line": 1}],
              [{"filename": "\ud800.py", "name": "@sum", "line": 2}]]  # fmt: skip
    entries = [entry | {"frames": each, "user_metadata": "+1"} for each in frames]
    return read_snapshot("x", {"segments": [], "device_traces": [entries]}, 1 << 20)


def test_untrusted_text_in_csv_is_no_formula_and_breaks_no_row() -> None:
    rows = of_csv(hostile())
    assert len(rows) == 2
    assert rows[0]["name"] == '\'=cmd|"/c calc"!A0:1 f\n,'
    assert rows[0]["user_metadata"] == "'+1"
    assert rows[1]["name"] == "\\ud800.py:2 @sum"
    lines = of_lines(hostile())
    assert lines[0]["user_metadata"] == "+1"
    assert lines[1]["name"] == "\\ud800.py:2 @sum"


def test_csv_refuses_a_state_without_entries() -> None:
    recording = read_snapshot("state", {"segments": [], "device_traces": [[]]}, 1 << 20)
    with pytest.raises(RecordingError, match="state: holds no entries"):
        written("csv", recording)


def test_parquet_is_the_same_table_with_whole_stacks() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    recording = load(GPT2)
    table = parquet.read_table(io.BytesIO(written("parquet", recording)))
    assert table.column_names == [*COLUMNS, "frames"]
    columns = table.to_pydict()
    frames = columns.pop("frames")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    known = [{name: value for name, value in row.items() if value is not None} for row in rows]
    assert known == of_lines(recording)
    for text, entry in zip(frames, recording.devices[0], strict=True):
        wanted = [f"{f.filename}:{f.line} {f.name}" for f in entry.frames]
        assert (text.split("\n") if text else []) == wanted


def test_parquet_stores_untrusted_text_and_several_devices() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    snapshot = {"action": "alloc", "addr": (1 << 64) - 512, "size": 1, "stream": (1 << 64) - 1}
    both = [[snapshot], [], [snapshot, snapshot]]
    recording = read_snapshot("x", {"segments": [], "device_traces": both}, 1 << 20)
    for each, devices in ((hostile(), [0, 0]), (recording, [0, 2, 2])):
        table = parquet.read_table(io.BytesIO(written("parquet", each)))
        assert table["device"].to_pylist() == devices
    assert table["addr"].to_pylist()[0] == (1 << 64) - 512
