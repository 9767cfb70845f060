"""Tests of `allocsim tune` against figures of real PyTorch runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
RAGGED = "gpt2-ragged-torch2.15.pickle.gz"
CONFS = [
    "max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "expandable_segments:True",
    "large_segment_size_mb:64",
]


def what_happened(traces: Path) -> dict[str, dict[str, Any]]:
    """Return the runs of real PyTorch on a device of 24,000 MiB, by option string."""
    runs = json.loads((traces / "gpt2-ragged-what-if.json").read_text())["runs"]
    return {run["conf"]: run for run in runs if run["device_memory"] == 24_000 << 20}


@pytest.fixture
def tuned(cli: Cli, traces: Path) -> dict[str, Any]:
    options = [part for conf in CONFS for part in ("--try", conf)]
    done = cli("tune", traces / RAGGED, "--device-memory", "24000MiB", *options, "--json")
    assert (done.code, done.err) == (0, "")
    document: dict[str, Any] = json.loads(done.out)
    return document


def test_settings_rank_as_the_real_runs_did_to_the_byte(
    tuned: dict[str, Any], traces: Path
) -> None:
    assert [(row["conf"], row["peak_reserved_bytes"] >> 20) for row in tuned["rows"]] == [
        ("expandable_segments:True", 5_850),
        ("large_segment_size_mb:64", 8_780),
        ("", 8_828),
        ("roundup_power2_divisions:4", 9_438),
        ("max_split_size_mb:64", 17_626),
    ]
    truth = what_happened(traces)
    keys = (
        "peak_reserved_bytes",
        "peak_allocated_bytes",
        "num_alloc_retries",
        "num_ooms",
        "num_device_alloc",
        "num_device_free",
    )
    for row in tuned["rows"]:
        assert {key: row[key] for key in keys} == {key: truth[row["conf"]][key] for key in keys}


def test_tune_json_has_the_documented_keys(tuned: dict[str, Any]) -> None:
    assert {"baseline", "rows", "best", "bounds", "seconds", "entries_replayed"} <= set(tuned)
    names = {
        "conf",
        "memory_fraction",
        "peak_reserved_bytes",
        "min_device_memory_bytes",
        "num_alloc_retries",
        "num_device_alloc",
        "num_device_free",
        "num_ooms",
    }
    assert all(names <= set(row) for row in [tuned["baseline"], *tuned["rows"]])
    assert tuned["baseline"]["conf"] == ""
    assert tuned["best"]["conf"] == "expandable_segments:True"
    assert tuned["best"]["env"] == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert tuned["best"]["saved_bytes"] == 9_256_828_928 - 6_134_169_600
    # Peak of live bytes under expandable segments, where the end of a block is never wasted.
    assert tuned["bounds"]["peak_live_bytes"] == 5_670_153_216


def test_tune_finds_the_smallest_device_without_a_retry(tuned: dict[str, Any]) -> None:
    for row in tuned["rows"]:
        assert row["min_device_memory_bytes"] == row["peak_reserved_bytes"]


@pytest.mark.slow
def test_tune_without_try_finds_a_setting_at_least_as_good(cli: Cli, traces: Path) -> None:
    done = cli("tune", traces / RAGGED, "--device-memory", "24000MiB", "--jobs", 2, "--json")
    document = json.loads(done.out)
    best = next(row for row in document["rows"] if row["conf"] == document["best"]["conf"])
    assert best["peak_reserved_bytes"] <= 6_134_169_600
    assert best["num_alloc_retries"] == 0
    assert best["num_ooms"] == 0
    assert document["entries_replayed"] < document["entries"] * len(document["rows"]) / 2


def test_tune_prints_a_line_for_each_shell(cli: Cli, traces: Path) -> None:
    done = cli("tune", traces / RAGGED, "--device-memory", "24GiB", "--try", CONFS[2], "-v")
    assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" in done.out
    assert "$env:PYTORCH_CUDA_ALLOC_CONF = 'expandable_segments:True'\n" in done.out
    assert 'set "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"\n' in done.out
    assert 'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"\n' in done.out
    assert "33.7% of 8.62 GiB" in done.out


def test_tune_prints_the_reason_if_no_setting_helps(cli: Cli, traces: Path) -> None:
    file = traces / "gpt2-expandable-oom-torch2.15.pickle.gz"
    done = cli("tune", file, "--try", "max_split_size_mb:64")
    assert done.code == 0
    assert "nothing helps: 4.66 GiB live at once, and no setting tried answers" in (
        " ".join(done.out.split())
    )
    assert "export PYTORCH" not in done.out


def test_tune_uses_the_given_costs(cli: Cli, traces: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text('{"cuda_malloc": 1000}')
    done = cli("tune", traces / RAGGED, "--costs", costs, "--try", "", "--json")
    assert json.loads(done.out)["baseline"]["driver_us"] == 117_000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--try", "max_split:5"], "unrecognized key 'max_split'"),
        (["--costs", "no/such.json"], "no/such.json: cannot be read"),
        (["--device", "7"], "device 7 is not in the recording"),
        (["--jobs", "-1"], "'-1' is not a number of processes; expected 1 to 1024"),
        (["--jobs", "0"], "'0' is not a number of processes"),
        (["--jobs", "100000"], "'100000' is not a number of processes"),
        (["--torch", "0.3"], "0.3"),
        (["--results", "/"], "/: cannot be used as results file"),
    ],
)
def test_tune_command_refuses_wrong_input_in_a_sentence(
    cli: Cli, traces: Path, arguments: list[str], sentence: str
) -> None:
    done = cli("tune", traces / RAGGED, *arguments)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1


def test_tune_without_dask_says_how_to_install_it(
    cli: Cli, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    done = cli("tune", traces / RAGGED, "--dask", "tcp://127.0.0.1:1")
    assert done.code == 2
    assert "pip install 'allocsim[dask]'" in done.err
