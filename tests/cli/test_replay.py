"""Tests of `allocsim replay` on recordings in the repository: text, JSON, exit codes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import allocsim.replaying
from allocsim.core import IS_COMPILED
from allocsim.simulation import Fidelity, Mismatch, Run

SHARED = Path(__file__).parents[3] / "shared" / "recordings"
Cli = Callable[..., Any]
OOM = "gpt2-ragged-oom-torch2.15.pickle.gz"
FITS = "gpt2-ragged-torch2.15.pickle.gz"

# numbers of entries, allocations and segments; entry of the out-of-memory error
KNOWN = {
    "gpt2-expandable-oom-torch2.15": (26008, 9105, 3, 26003),
    "gpt2-ragged-oom-torch2.15": (26064, 9105, 84, 26059),
    "gpt2-ragged-torch2.15": (50210, 16997, 117, None),
    "gpt2-side-stream-torch2.15": (37049, 12709, 120, None),
}


@pytest.mark.parametrize("name", KNOWN)
def test_replay_proves_every_recording_in_the_tree(cli: Cli, traces: Path, name: str) -> None:
    entries, allocations, segments, oom = KNOWN[name]
    done = cli("replay", traces / f"{name}.pickle.gz", "--json", "--strict")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    device = document["devices"][0]
    assert device["entries"] == entries
    fidelity = device["fidelity"]
    assert fidelity["addresses_matched"] == fidelity["allocations"] == allocations
    assert fidelity["segments_matched"] == fidelity["segments"] == segments
    assert fidelity["entries_matched"] == fidelity["entries"] == entries
    assert fidelity["first_mismatch"] is None
    assert [found["entry"] for found in device["ooms"]] == ([] if oom is None else [oom])

    truth = json.loads((traces / f"{name}.json").read_text())
    assert document["conf"] == truth["conf"]
    assert device["peak_allocated_bytes"] == truth["peak_allocated"]
    assert device["peak_reserved_bytes"] == truth["peak_reserved"]
    assert {key: device["stats"][key] for key in truth["stats"]} == truth["stats"]
    assert [found["message"] for found in device["ooms"]] == [
        text for text in [truth.get("oom")] if text
    ]


def test_replay_json_has_the_documented_keys(cli: Cli, traces: Path) -> None:
    document = json.loads(cli("replay", traces / OOM, "--json").out)
    assert {"conf", "torch_version", "device_memory", "devices"} <= document.keys()
    device = document["devices"][0]
    assert {
        "device",
        "entries",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "stats",
        "ooms",
        "fidelity",
    } <= device.keys()
    oom = device["ooms"][0]
    assert (oom["requested_bytes"], oom["rounded_bytes"]) == (None, 726917632)
    assert (oom["tried_bytes"], oom["cause"]) == (727711744, "fragmentation_likely")
    assert "cure" not in device


def test_replay_json_has_the_recommendation_with_cure(cli: Cli, traces: Path) -> None:
    document = json.loads(cli("replay", traces / OOM, "--json", "--cure").out)
    assert document["devices"][0]["cure"]["best"]["conf"] == "expandable_segments:True"


def test_replay_screen_has_proof_cause_and_cure(cli: Cli, traces: Path) -> None:
    done = cli("replay", traces / OOM)
    assert (done.code, done.err) == (0, "")
    assert "9,105 of 9,105 addresses as recorded" in done.out
    assert "84 of 84 segments as recorded" in done.out
    assert "all addresses as recorded" in done.out
    assert "fragmentation likely" in done.out
    assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_replay_says_that_no_setting_avoids_the_error(cli: Cli, traces: Path) -> None:
    done = cli("replay", traces / "gpt2-expandable-oom-torch2.15.pickle.gz")
    assert "the device is full" in done.out
    assert "export PYTORCH" not in done.out.partition("To paste")[2]
    assert "what is in use at once is more than the device has" in " ".join(done.out.split())


def test_replay_of_a_run_that_fits_recommends_less_memory(cli: Cli, traces: Path) -> None:
    done = cli("replay", traces / FITS)
    assert "no request failed; the memory of the device is unknown" in (" ".join(done.out.split()))
    assert "reserves at most 5.71 GiB instead of 8.62 GiB" in " ".join(done.out.split())


@pytest.mark.parametrize("option", [["--no-cure"], ["--conf", "max_split_size_mb:64"]])
def test_replay_with_no_cure_tries_no_settings(cli: Cli, traces: Path, option: list[str]) -> None:
    done = cli("replay", traces / OOM, *option)
    assert done.code == 0
    assert "Settings tried" not in done.out
    assert "To paste" not in done.out


def test_replay_under_other_settings_is_not_compared(cli: Cli, traces: Path) -> None:
    document = json.loads(
        cli("replay", traces / OOM, "--json", "--conf", "expandable_segments:True").out
    )
    assert document["devices"][0]["fidelity"] is None
    assert document["devices"][0]["ooms"] == []


def test_replay_exits_with_an_error_for_an_oom_only_if_requested(cli: Cli, traces: Path) -> None:
    assert cli("replay", traces / OOM, "--no-cure").code == 0
    assert cli("replay", traces / OOM, "--no-cure", "--fail-on-oom").code == 3
    assert cli("replay", traces / FITS, "--no-cure", "--fail-on-oom").code == 0


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs recordings of other people")
def test_strict_fails_under_the_rules_of_the_wrong_release(cli: Cli) -> None:
    path = SHARED / "decomfl-torch2.9.pickle"
    assert cli("replay", path, "--strict").code == 0
    done = cli("replay", path, "--strict", "--torch", "2.15")
    assert done.code == 1
    assert "5,833 of 7,946 addresses as recorded" in done.out
    assert "the first difference is at entry 11,407" in done.out


@pytest.mark.skipif(IS_COMPILED, reason="a compiled core cannot be changed")
def test_strict_tells_a_wrong_row_from_a_wrong_model(
    cli: Cli, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fault in the bulk steps, the replay differs; --strict finds the fault."""
    assert cli("replay", traces / OOM, "--no-cure", "--strict").code == 0
    monkeypatch.setattr("allocsim.core.fast_path.MIN_BLOCK_SIZE", 4096)
    done = cli("replay", traces / OOM, "--no-cure")
    assert done.code == 0
    assert "NOT all addresses as recorded" in done.out
    done = cli("replay", traces / OOM, "--no-cure", "--strict")
    assert (done.code, done.out) == (70, "")
    assert "step by step" in done.err


def test_strict_fails_on_any_difference(
    cli: Cli, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(*arguments: Any, **options: Any) -> Run:
        run = replay(*arguments, **options)
        mismatch = Mismatch(7, "one thing", "another")
        fidelity = Fidelity(9105, 9104, 84, 84, 26064, 7, mismatch)
        device = dataclasses.replace(run.devices[0], fidelity=fidelity)
        return dataclasses.replace(run, devices=(device,))

    cli("replay", traces / OOM)  # so that no module keeps the patched function when it is imported
    replay = allocsim.replaying.replay_prepared
    monkeypatch.setattr(allocsim.replaying, "replay_prepared", differ)
    assert cli("replay", traces / OOM, "--no-cure").code == 0
    done = cli("replay", traces / OOM, "--no-cure", "--strict", "--fail-on-oom")
    assert done.code == 1
    assert "NOT all addresses as recorded" in done.out


def test_invariants_are_walked_on_request(cli: Cli, traces: Path) -> None:
    assert cli("replay", traces / OOM, "--check-every", 5000, "--no-cure").code == 0


def test_replay_command_replays_only_the_chosen_device(cli: Cli, traces: Path) -> None:
    document = json.loads(cli("replay", traces / FITS, "--device", 0, "--json").out)
    assert [device["device"] for device in document["devices"]] == [0]
