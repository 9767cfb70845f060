"""Tests of `--host-spill`."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

from allocsim import CachingAllocator
from allocsim.units import GIB, MIB
from tests.cli.conftest import Done

Cli = Callable[..., Done]
LENT = ("--device-memory", "1GiB", "--host-spill", "32GiB")


def test_replay_reports_size_moment_and_owner_of_spilled_memory(cli: Cli, traces: Path) -> None:
    done = cli("replay", traces / "gpt2-ragged-torch2.15.pickle.gz", *LENT)
    text = " ".join(done.out.split())
    assert done.code == 0
    assert "because 7.62 GiB of host memory extend the card" in text
    assert "at most 7.62 GiB of 32.00 GiB in host memory, after entry 26,012" in text
    assert "from entry 529 on" in text
    assert "steps take 1 to 56 times as long" in text
    assert "4.70 GiB allocated after entry 26,012:" in text
    assert max(map(len, done.out.splitlines())) <= 80


def test_replay_json_has_the_spilled_memory(cli: Cli, traces: Path) -> None:
    file = traces / "gpt2-ragged-torch2.15.pickle.gz"
    (device,) = json.loads(cli("replay", file, *LENT, "--json").out)["devices"]
    spill = device["spill"]
    assert spill["lent_bytes"] == 32 * GIB
    assert spill["most_bytes"] == device["peak_reserved_bytes"] - GIB
    assert sum(spill["owners"].values()) < device["peak_allocated_bytes"]
    (device,) = json.loads(cli("replay", file, "--json").out)["devices"]
    assert "spill" not in device


def test_replay_says_that_no_host_memory_was_needed(cli: Cli, traces: Path) -> None:
    file = traces / "gpt2-ragged-torch2.15.pickle.gz"
    done = cli("replay", file, "--device-memory", "24GiB", "--host-spill", "8GiB", "-v")
    assert "nothing: everything fitted on the card" in " ".join(done.out.split())


def test_replay_refuses_cure_with_host_spill(cli: Cli, traces: Path) -> None:
    done = cli("replay", traces / "gpt2-ragged-torch2.15.pickle.gz", *LENT, "--cure")
    assert done.code == 2
    assert "--cure searches settings for a device without host memory" in done.err


def grown(place: Path) -> Path:
    """Write the recording of a growing cache; each of twenty requests exceeds the unused memory."""
    gpu = CachingAllocator("16GiB", record_history=True)
    for size in range(30, 230, 10):
        ptr = gpu.malloc(size * MIB)
        assert ptr is not None
        gpu.free(ptr)
    file = place / "grown.pickle"
    file.write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
    return file


def test_tune_says_what_spills_under_each_setting(cli: Cli, tmp_path: Path) -> None:
    """The card and host memory refuse no request; bytes beyond the card are host memory."""
    given = (grown(tmp_path), "--try", "expandable_segments:True", "--device-memory", "1GiB")
    done = cli("tune", *given, "--host-spill", "32GiB")
    text = " ".join(done.out.split())
    assert done.code == 0
    assert "1.44 GiB of 32.00 GiB in host memory under the recorded settings" in text
    assert "0 bytes under the best; the card has 1024.00 MiB" in text
    spill = json.loads(cli("tune", *given, "--host-spill", "32GiB", "--json").out)["spill"]
    assert spill["rows"] == {"": 1476 * MIB, "expandable_segments:True": 0}


def test_tune_asks_for_the_card_and_for_no_smallest_one(cli: Cli, traces: Path) -> None:
    file = traces / "gpt2-ragged-torch2.15.pickle.gz"
    done = cli("tune", file, "--host-spill", "8GiB")
    assert (done.code, "needs the memory of the card" in done.err) == (2, True)
    done = cli("tune", file, *LENT, "--find-device")
    assert (done.code, "--find-device needs a card without host memory" in done.err) == (2, True)
