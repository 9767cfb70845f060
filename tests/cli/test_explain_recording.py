"""Tests of `allocsim explain` for recordings: text, JSON, and answers without a search."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.units import MIB

Cli = Callable[..., Any]


@pytest.fixture
def stranded(tmp_path: Path) -> Path:
    """Write a recording that ends out of memory: 530 MiB requested, 260 unused, 270 free."""
    gpu = CachingAllocator("800MiB", record_history=True)
    gpu.free(gpu.malloc(530 * MIB))
    gpu.malloc(270 * MIB)
    with pytest.raises(OutOfMemoryError):
        gpu.malloc(530 * MIB)
    path = tmp_path / "stranded.pickle"
    path.write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
    return path


def test_explain_json_has_the_documented_keys(cli: Cli, stranded: Path) -> None:
    done = cli("explain", stranded, "--json")
    assert (done.code, done.err) == (0, "")
    (oom,) = json.loads(done.out)["ooms"]
    assert oom["cause"] == "fragmentation_likely"
    assert oom["figures"] == {
        "tried_bytes": 530 * MIB,
        "total_bytes": 800 * MIB,
        "allocated_bytes": 270 * MIB,
        "reserved_bytes": 530 * MIB,
        "idle_bytes": 260 * MIB,
        "free_bytes": 270 * MIB,
        "limit_bytes": None,
        "process_bytes": None,
        "pool_bytes": None,
        "others_bytes": None,
        "largest_bytes": None,
    }
    assert oom["arithmetic"].startswith("530.00 MiB tried <= 530.00 MiB = 260.00 MiB idle")
    assert oom["entry"] == 5
    assert sum(oom["kinds"].values()) == 800 * MIB
    assert oom["largest_request_bytes"] == 270 * MIB
    (blocker,) = oom["blockers"]
    assert (blocker["size"], blocker["entry"], blocker["age_entries"]) == (270 * MIB, 4, 1)
    assert oom["blockers_summary"]["freed_bytes"] == 530 * MIB
    assert oom["entries_left"] == 0
    assert all(isinstance(sentence, str) for sentence in oom["advice"])


def test_explain_gives_the_proof_of_every_remedy(cli: Cli, stranded: Path) -> None:
    (oom,) = json.loads(cli("explain", stranded, "--json").out)["ooms"]
    kinds = {cure["kind"] for cure in oom["cures"]}
    assert kinds == {"conf", "device_memory"}
    for cure in oom["cures"]:
        assert cure["device_memory"] >= cure["peak_reserved_bytes"]
        assert cure["num_alloc_retries"] >= 0
    tried = {trial["conf"]: trial["oom_entry"] for trial in oom["tried"]}
    assert tried["roundup_power2_divisions:2"] == 5
    assert tried["max_split_size_mb:64"] is None


def test_explain_text_names_cause_memory_blockers_and_cures(cli: Cli, stranded: Path) -> None:
    done = cli("explain", stranded, "-v")
    text = " ".join(done.out.split())
    assert "Verdict fragmentation_likely" in text
    assert "260.00 MiB idle between live blocks of a segment" in text
    assert "a request of 270.00 MiB would have succeeded at that moment" in text
    assert "1 live block, 270.00 MiB in all" in text
    assert (
        "device 1.04 GiB with PyTorch's defaults (0 retries; 2 MiB less fails at entry 5)" in text
    )
    assert "the recording ends with the error" in text
    assert max(map(len, done.out.splitlines())) <= 80


def test_explain_uses_the_given_device_memory(cli: Cli, stranded: Path) -> None:
    done = cli("explain", stranded, "--device-memory", "2GiB")
    assert "no request failed" in done.out


def test_explain_replays_under_another_conf(cli: Cli, stranded: Path) -> None:
    document = json.loads(cli("explain", stranded, "--conf", "max_split_size_mb:20", "--json").out)
    assert document["ooms"] == []
    assert document["conf"] == "max_split_size_mb:20"
