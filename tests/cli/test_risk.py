"""Tests of `allocsim risk`: headroom, closest call, smallest devices, measures of memory."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator
from allocsim.units import MIB

Cli = Callable[..., Any]


@pytest.fixture
def loads(tmp_path: Path) -> Path:
    """Write a run that requests and frees 530 MiB, then requests 270 and 530.

    It reserves 1,060 MiB for the 800 in use.
    """
    gpu = CachingAllocator("16GiB", record_history=True)
    gpu.free(gpu.malloc(530 * MIB))
    gpu.malloc(270 * MIB)
    gpu.malloc(530 * MIB)
    path = tmp_path / "loads.pickle"
    path.write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
    return path


def test_risk_json_has_headroom_sizes_and_measures(cli: Cli, loads: Path) -> None:
    done = cli(
        "risk", loads, "--device-memory", "1200MiB", "--try", "max_split_size_mb:20", "--json"
    )
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["fits"]
    assert [p["headroom_bytes"] // MIB for p in document["headroom"]] == [670, 140]
    assert document["tightest"]["entry"] == 6
    assert document["largest_request"]["bytes"] == 530 * MIB
    assert document["largest_request"]["unusable"]["unusable_bytes"] == 260 * MIB
    needs = {need["conf"]: need["min_device_memory_bytes"] for need in document["settings"]}
    assert needs == {"": 1060 * MIB, "max_split_size_mb:20": 800 * MIB}
    assert document["measures"]["avoidable_bytes"] == 260 * MIB
    assert document["measures"]["utilization"] == pytest.approx(800 / 1060)


def test_risk_text_fits_a_terminal(cli: Cli, loads: Path) -> None:
    done = cli("risk", loads, "--device-memory", "1200MiB", "--try", "max_split_size_mb:20", "-v")
    text = " ".join(done.out.split())
    assert max(map(len, done.out.splitlines())) <= 80
    assert "Closest call entry 6: 140.00 MiB more were available" in text
    assert "at worst 260.00 MiB of 1.04 GiB reserved (25%) were idle but unusable for it" in text
    assert "max_split_size_mb:20 800.00 MiB 0 800.00 MiB" in text
    assert "Avoidable 260.00 MiB" in text


def test_risk_reports_a_device_that_is_too_small(cli: Cli, loads: Path) -> None:
    arguments = ("risk", loads, "--device-memory", "1000MiB", "--try", "")
    done = cli(*arguments)
    assert done.code == 0
    assert "It fails at entry 6: 530.00 MiB tried, 470.00 MiB free" in " ".join(done.out.split())
    assert cli(*arguments, "--fail-on-oom").code == 3


def test_risk_without_a_device_memory_has_no_closest_call(cli: Cli, loads: Path) -> None:
    done = cli("risk", loads, "--try", "", "-v")
    assert done.code == 0
    assert "Closest call" not in done.out
    assert "unknown: no limit" in done.out


def test_risk_json_has_no_free_memory_if_the_device_is_unknown(cli: Cli, loads: Path) -> None:
    found = json.loads(cli("risk", loads, "--try", "", "--json").out)
    assert found["device_memory"] is None
    points = [*found["headroom"], found["tightest"]]
    assert {(each["free_bytes"], each["headroom_bytes"]) for each in points} == {(None, None)}


def test_risk_refuses_an_unknown_setting_in_a_sentence(cli: Cli, loads: Path) -> None:
    done = cli("risk", loads, "--try", "max_split_size_mb:two")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1


def test_risk_asks_for_one_of_several_devices(cli: Cli, tmp_path: Path) -> None:
    first, second = (CachingAllocator("1GiB", record_history=True, device=n) for n in (0, 1))
    first.malloc(MIB)
    second.malloc(MIB)
    snapshot = first.snapshot()
    other = second.snapshot()
    snapshot["device_traces"] = [snapshot["device_traces"][0], other["device_traces"][-1]]
    snapshot["segments"] += other["segments"]
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    done = cli("risk", path)
    assert done.code == 2
    assert "choose one (--device)" in done.err
    assert cli("risk", path, "--device", 1, "--try", "").code == 0


def test_risk_refuses_a_device_without_entries_in_a_sentence(cli: Cli, tmp_path: Path) -> None:
    """One of two devices did nothing while the other was recorded."""
    gpu = CachingAllocator("16GiB", record_history=True)
    gpu.malloc(MIB)
    snapshot = gpu.snapshot()
    idle = [{**segment, "device": 1} for segment in snapshot["segments"]]
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps({**snapshot, "segments": snapshot["segments"] + idle}))
    done = cli("risk", path, "--device", "1")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("device 1 has no entries; expected a recording with requests\n")
