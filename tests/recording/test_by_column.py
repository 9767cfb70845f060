"""Entries as a list per field give the same recording as a dictionary per entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocsim.errors import RecordingError
from allocsim.recording import RELEASES, Recording, load
from tests.recording.history import History, Plain, training_step, write


def by_column(snapshot: Plain) -> Plain:
    """Return the snapshot with every device's entries as columns."""

    def columns(entries: list[Plain]) -> dict[str, list[Any]]:
        names = dict.fromkeys(name for entry in entries for name in entry)
        return {name: [entry.get(name) for entry in entries] for name in names}

    return snapshot | {"device_traces": list(map(columns, snapshot["device_traces"]))}


def loaded(snapshot: Plain, folder: Path) -> Recording:
    return load(write(snapshot, folder / "a.pickle"))


@pytest.mark.parametrize("release", ["2.1", "2.12", "2.15"])
def test_recording_by_column_equals_the_recording_by_rows(release: str, tmp_path: Path) -> None:
    history = training_step()
    history.oom(1 << 40, device_free=4096)
    rows = loaded(history.snapshot(release), tmp_path)
    columns = loaded(by_column(history.snapshot(release)), tmp_path)
    assert columns.markers == rows.markers
    assert columns.frame_table.frames == rows.frame_table.frames
    (mine,), (theirs,) = columns.devices, rows.devices
    for name, column in theirs.columns().items():
        assert np.array_equal(mine.columns()[name], column), name
    assert mine.columns().keys() == theirs.columns().keys()
    assert (mine.texts, mine.pool_ids, mine.segments) == (
        theirs.texts,
        theirs.pool_ids,
        theirs.segments,
    )
    assert [each.addr for each in mine if each.action.text == "oom"] == [4096]


def test_release_of_a_recording_by_column_is_detected(tmp_path: Path) -> None:
    for release in RELEASES[1:]:
        snapshot = training_step().snapshot(release)
        markers = loaded(snapshot, tmp_path).markers
        assert loaded(by_column(snapshot), tmp_path).markers == markers


def refused(snapshot: Plain, folder: Path) -> str:
    with pytest.raises(RecordingError) as error:
        loaded(snapshot, folder)
    return str(error.value)


def test_wrong_value_in_a_column_is_named_with_its_entry(tmp_path: Path) -> None:
    def spoilt(name: str, value: object) -> str:
        snapshot = by_column(training_step().snapshot())
        snapshot["device_traces"][0][name][3] = value
        return refused(snapshot, tmp_path)

    assert "entry 3" in spoilt("size", -1)
    assert "has size -1" in spoilt("size", -1)
    assert "has no addr" in spoilt("addr", None)
    assert "has action 'alloy'" in spoilt("action", "alloy")
    assert "has pool_id 7" in spoilt("pool_id", 7)


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    snapshot = by_column(training_step().snapshot())
    snapshot["device_traces"][0]["size"].pop()
    assert "device_traces[0] has columns of" in refused(snapshot, tmp_path)
    snapshot["device_traces"][0]["size"] = 5
    assert "has size 5, expected a list" in refused(snapshot, tmp_path)


def test_device_without_entries_by_column_is_no_device(tmp_path: Path) -> None:
    history = History()
    snapshot = by_column(history.snapshot())
    assert snapshot["device_traces"] == [{}, {}]
    assert loaded(snapshot, tmp_path).devices == ()
    one = loaded(by_column(training_step().snapshot()), tmp_path)
    assert [trace.device for trace in one.devices] == [0]
