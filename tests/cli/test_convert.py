"""Tests of `allocsim convert`."""

from __future__ import annotations

import gzip
import importlib.util
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from allocsim.cli.convert import FORMAT_NAMES
from allocsim.recording import load
from allocsim.recording.export import snapshot_of
from allocsim.report.formats import FORMATS, format_of
from allocsim.workload import oom, write_recording

PROFILED = Path(__file__).parents[2] / "traces" / "profiled" / "trace-torch2.15.json.xz"

OOM = "gpt2-ragged-oom-torch2.15.pickle.gz"
TEXTS = ("perfetto", "speedscope", "minimalloc", "csv", "jsonl")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Write a recording of sixteen entries that ends out of memory."""
    path = tmp_path / "small.pickle"
    write_recording(oom(), path)
    return path


def test_format_names_of_the_parser_are_those_of_the_table() -> None:
    assert tuple(FORMATS) == FORMAT_NAMES


@pytest.mark.parametrize("name", FORMATS)
def test_convert_chooses_the_format_by_every_suffix(name: str) -> None:
    for suffix in FORMATS[name].suffixes:
        for end in (suffix, f"{suffix}.gz", suffix.upper()):
            assert format_of(f"a{end}") is FORMATS[name]


@pytest.mark.parametrize("name", TEXTS)
def test_convert_writes_each_format_plain_and_compressed(
    cli: Any, small: Path, tmp_path: Path, name: str
) -> None:
    plain, packed = (tmp_path / f"a{FORMATS[name].suffixes[0]}{end}" for end in ("", ".gz"))
    assert cli("convert", small, plain).code == 0
    assert cli("convert", small, packed).code == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    before = packed.read_bytes()
    assert cli("convert", small, packed).code == 0
    assert packed.read_bytes() == before


def test_convert_reports_the_written_file(cli: Any, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    made = cli("convert", small, path)
    assert (made.code, made.err) == (0, "")
    size = f"{path.stat().st_size / 1024:.2f} KiB"
    assert made.out == f"{path}: a table of entries, as CSV; 16 entries, {size}\n"


def test_option_to_selects_the_format_for_any_name(cli: Any, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    assert cli("convert", small, path, "--to", "jsonl").code == 0
    assert [json.loads(line)["entry"] for line in path.read_text().splitlines()] == [*range(16)]


def test_convert_without_settings_keeps_the_recorded_run(
    cli: Any, traces: Path, tmp_path: Path
) -> None:
    assert cli("convert", traces / OOM, tmp_path / "a.npz").code == 0
    assert cli("convert", tmp_path / "a.npz", tmp_path / "b.pkl").code == 0
    assert snapshot_of(load(tmp_path / "b.pkl")) == snapshot_of(load(traces / OOM))


def test_under_other_settings_it_is_the_run_under_them(
    cli: Any, small: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.pickle"
    made = cli("convert", small, path, "--conf", "expandable_segments:True")
    assert made.code == 0
    assert "\n  replayed under expandable_segments:True, PyTorch 2.15: " in made.out
    again = cli("replay", path, "--strict", "--json")
    assert again.code == 0
    assert json.loads(again.out)["conf"] == "expandable_segments:True"
    snapshot = pickle.loads(path.read_bytes())
    actions = {entry["action"] for entry in snapshot["device_traces"][0]}
    assert "segment_map" in actions
    assert "segment_alloc" not in actions
    assert snapshot["allocator_settings"]["expandable_segments"] is True


def test_convert_reports_the_written_file_as_json(cli: Any, small: Path, tmp_path: Path) -> None:
    made = json.loads(cli("convert", small, tmp_path / "a.csv", "--json").out)
    assert made["format"] == "csv"
    assert made["bytes"] == (tmp_path / "a.csv").stat().st_size
    assert made["is_simulated"] is False
    assert made["devices"] == [{"device": 0, "entries": 16, "segments": 3}]
    words = ("--device-memory", "20MiB", "--json")
    made = json.loads(cli("convert", small, tmp_path / "a.csv", *words).out)
    (device,) = made["devices"]
    assert made["is_simulated"] is True
    assert device["device_memory"] == 20 << 20
    assert device["stopped_at"] is not None
    assert device["peak_reserved_bytes"] == 20 << 20


def test_convert_stops_at_an_error_of_the_replay(cli: Any, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    made = cli("convert", small, path, "--device-memory", "20MiB")
    assert "reserved at the peak, out of memory at entry 4, where it ends\n" in made.out
    assert json.loads(path.read_text().splitlines()[-1])["action"] == "oom"


def test_convert_continues_after_a_recorded_error(cli: Any, small: Path, tmp_path: Path) -> None:
    made = cli("convert", small, tmp_path / "a.csv", "--conf", "")
    assert made.out.endswith("60.00 MiB reserved at the peak, out of memory at entry 15\n")


def test_convert_writes_only_the_chosen_device(cli: Any, small: Path, tmp_path: Path) -> None:
    snapshot = pickle.loads(small.read_bytes())
    snapshot["device_traces"] *= 2
    snapshot["segments"] += [segment | {"device": 1} for segment in snapshot["segments"]]
    two = tmp_path / "two.pickle"
    two.write_bytes(pickle.dumps(snapshot, protocol=4))
    made = cli("convert", two, tmp_path / "a.csv")
    assert "32 entries of 2 devices" in made.out
    for words in ((), ("--conf", "max_split_size_mb:32")):
        assert cli("convert", two, tmp_path / "b.pickle", "--device", 1, *words).code == 0
        assert [trace.device for trace in load(tmp_path / "b.pickle").devices] == [1]
    refused = cli("convert", two, tmp_path / "a.minimalloc.csv")
    assert (refused.code, refused.out) == (2, "")
    assert "has devices 0, 1; choose one (--device)" in refused.err
    assert cli("convert", two, tmp_path / "a.speedscope.json").code == 0
    profiles = json.loads((tmp_path / "a.speedscope.json").read_text())["profiles"]
    assert [each["name"].partition(" (")[0] for each in profiles] == [
        "device 0 at the out-of-memory error",
        "device 1 at the out-of-memory error",
    ]


def test_speedscope_profile_weighs_the_allocated_bytes(
    cli: Any, small: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.speedscope.json"
    cli("convert", small, path)
    (profile,) = json.loads(path.read_text())["profiles"]
    held = json.loads(cli("top", small, "--json").out)["allocated_bytes"]
    assert sum(profile["weights"]) == profile["endValue"] == held


def test_convert_writes_a_state_in_formats_that_hold_one(
    cli: Any, state: Path, tmp_path: Path
) -> None:
    for name in ("a.npz", "a.pickle", "a.speedscope.json"):
        assert cli("convert", state, tmp_path / name).code == 0
    for name in ("a.csv", "a.jsonl", "a.perfetto.json", "a.minimalloc.csv"):
        refused = cli("convert", state, tmp_path / name)
        assert (refused.code, refused.out) == (2, "")
        assert f"{state}: holds no entries" in refused.err
        assert not (tmp_path / name).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.npz", "a.pickle", "a.speedscope.json", "state.pickle",
    ]  # fmt: skip


WRONG = [
    ("a.json", "a.json has no ending of a known format; expected one of .pickle, "),
    ("no/a.csv", "cannot be written: there is no such folder"),
    (".csv/a", "a has no ending of a known format"),
    ("folder.csv", "folder.csv is a directory; expected the name of a file"),
]


@pytest.mark.parametrize(("name", "sentence"), WRONG)
def test_convert_refuses_wrong_input_in_a_sentence(
    cli: Any, small: Path, tmp_path: Path, name: str, sentence: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    refused = cli("convert", small, tmp_path / name)
    assert (refused.code, refused.out) == (2, "")
    assert sentence in refused.err
    assert refused.err.count("\n") == 1


def test_convert_never_overwrites_its_input(cli: Any, small: Path, tmp_path: Path) -> None:
    before = small.read_bytes()
    (tmp_path / "link.pickle").symlink_to(small)
    for name in (small, tmp_path / "link.pickle", small.parent / "." / small.name):
        refused = cli("convert", small, name)
        assert refused.code == 2
        assert "is also the input; expected another name" in refused.err
    assert small.read_bytes() == before


def test_convert_of_a_broken_input_writes_no_output(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.pickle").write_bytes(b"\x80\x04nonsense")
    (tmp_path / "a.csv").write_text("kept")
    assert cli("convert", tmp_path / "bad.pickle", tmp_path / "a.csv").code == 2
    assert cli("convert", tmp_path / "none.pickle", tmp_path / "a.csv").code == 2
    assert (tmp_path / "a.csv").read_text() == "kept"
    assert len(list(tmp_path.iterdir())) == 2


def test_convert_refuses_an_unknown_setting_in_a_sentence(
    cli: Any, small: Path, tmp_path: Path
) -> None:
    refused = cli("convert", small, tmp_path / "a.csv", "--conf", "nonsense:1")
    assert (refused.code, refused.out) == (2, "")
    assert not (tmp_path / "a.csv").exists()


def test_parquet_without_pyarrow_is_a_sentence(
    cli: Any, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allocsim.cli.convert.find_spec", lambda _: None)
    refused = cli("convert", small, tmp_path / "a.parquet")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.endswith(
        "pyarrow, which is not installed: pip install 'allocsim[parquet]'\n"
    )


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow")
def test_parquet_with_pyarrow_is_written(cli: Any, small: Path, tmp_path: Path) -> None:
    assert cli("convert", small, tmp_path / "a.parquet").code == 0
    assert (tmp_path / "a.parquet").read_bytes()[:4] == b"PAR1"


def test_convert_refuses_a_special_file_as_output(cli: Any, small: Path) -> None:
    refused = cli("convert", small, "/dev/null", "--to", "csv")
    assert refused.code == 2
    assert "/dev/null is not a regular file" in refused.err
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["run.pickle", "run.perfetto.json"])
def test_requests_alone_become_a_run(name: str, cli: Any, tmp_path: Path) -> None:
    """A profiler trace has no addresses and segments for a viewer."""
    done = cli("convert", str(PROFILED), str(tmp_path / name))
    assert done.code == 0, done.err
    assert "42.00 MiB reserved at the peak" in done.out
    if name.endswith("pickle"):
        again = cli("replay", str(tmp_path / name), "--strict")
        assert again.code == 0, again.err
        assert "42.00 MiB reserved at the peak" in again.out


def test_requests_alone_stay_requests_as_rows(cli: Any, tmp_path: Path) -> None:
    done = cli("convert", str(PROFILED), str(tmp_path / "rows.csv"))
    assert done.code == 0, done.err
    assert "replayed under" not in done.out
    again = cli("replay", str(tmp_path / "rows.csv"))
    assert "42.00 MiB reserved at the peak" in again.out
