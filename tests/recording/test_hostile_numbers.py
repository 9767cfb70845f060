"""Impossible numbers are refused by name or found by `find_defects`, without a crash or a delay."""

from __future__ import annotations

import gzip
import json
import math
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim.cli import main
from allocsim.errors import RecordingError
from allocsim.recording import find_defects, load
from tests.recording.history import Plain, training_step

SECONDS = 10


def written(snapshot: Plain, folder: Path, form: str) -> Path:
    path = folder / f"a.{form}"
    if form == "json":
        path.write_text(json.dumps(snapshot))
    else:
        path.write_bytes(pickle.dumps(snapshot, 4))
    return path


ODD: dict[str, Any] = {
    "NaN": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "10^400": 10**400,
    "minus one": -1,
    "2^64": 1 << 64,
    "minus 2^63": -(1 << 63),
    "a fraction": 0.5,
    "true": True,
    "text": "9" * 400,
}


@pytest.mark.parametrize("form", ["json", "pickle"])
@pytest.mark.parametrize("name", ["size", "addr", "stream", "time_us"])
@pytest.mark.parametrize("odd", ODD)
def test_invalid_number_of_a_row_is_named(odd: str, name: str, form: str, tmp_path: Path) -> None:
    snapshot = training_step().snapshot()
    snapshot["device_traces"][0][4][name] = ODD[odd]
    with pytest.raises(RecordingError) as error:
        load(written(snapshot, tmp_path, form))
    sentence = str(error.value)
    assert sentence.isprintable()
    assert len(sentence) < 600
    if odd == "10^400" and form == "pickle":
        assert "LONG4" in sentence or "LONG1" in sentence
    else:
        assert "entry 4" in sentence
        assert name in sentence


def overlapping(segments: list[Plain]) -> None:
    segments[1]["address"] = segments[0]["address"]
    segments[1]["blocks"][0]["address"] = segments[0]["address"]


def beyond(segments: list[Plain]) -> None:
    segments[0]["blocks"][0]["address"] = (1 << 64) - 512


def backwards(segments: list[Plain]) -> None:
    segments[0]["blocks"].reverse()


def at_the_top(segments: list[Plain]) -> None:
    segments[0]["address"] = segments[0]["blocks"][0]["address"] = (1 << 64) - 512


def immense(segments: list[Plain]) -> None:
    segments[0]["total_size"] = (1 << 63) - 1


def empty(segments: list[Plain]) -> None:
    segments[0]["total_size"] = 0


@pytest.mark.parametrize("change", [overlapping, beyond, backwards, at_the_top, immense, empty])
def test_impossible_segments_are_an_error(
    change: Callable[[list[Plain]], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = training_step().snapshot()
    change(snapshot["segments"])
    path = written(snapshot, tmp_path, "pickle")
    assert find_defects(load(path)), "what cannot be is found"
    for command in ("replay", "explain", "top", "risk"):
        assert main([command, str(path)]) in (0, 1, 2)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert out or err


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"segments":[', "[[[[{}],"])
def test_json_of_any_depth_is_refused_in_one_sentence(opening: str, tmp_path: Path) -> None:
    for packed in (False, True):
        data = (opening * 100_000).encode()
        path = tmp_path / "a.json"
        path.write_bytes(gzip.compress(data) if packed else data)
        began = time.process_time()
        with pytest.raises(RecordingError, match=r"nested too deeply|sound JSON|out of proportion"):
            load(path)
        assert time.process_time() - began < SECONDS
