"""Several devices in one recording: figures and notes name the device, or one is chosen."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.units import MIB

from .conftest import Done

Cli = Callable[..., Done]


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Write a recording: device 0 ran out of memory at 1 GiB; device 1 has an unknown size."""
    first = CachingAllocator("1GiB", record_history=True)
    for _ in range(3):
        first.free(first.malloc(310 * MIB))
        first.malloc(160 * MIB)
    with pytest.raises(OutOfMemoryError):
        first.malloc(310 * MIB)
    second = CachingAllocator("4GiB", record_history=True, device=1)
    second.free(second.malloc(30 * MIB))
    second.malloc(100)
    second.empty_cache()
    second.malloc(200)
    one, other = first.snapshot(), second.snapshot()
    snapshot = {
        **one,
        "segments": one["segments"] + other["segments"],
        "device_traces": [one["device_traces"][0], other["device_traces"][1]],
    }
    path = tmp_path / "both.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    return path


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("command", ["replay", "explain"])
def test_commands_report_all_devices_and_notes_name_theirs(
    cli: Cli, both: Path, command: str
) -> None:
    done = cli(command, both, "-v")
    assert done.code == 0, done.err
    for line in ("== device 0 ==", "== device 1 =="):
        assert line in done.out
    output = flat(done.out)
    assert "device 0: device memory 1024.00 MiB: free plus reserved" in output
    assert "device 1: a release of cached memory is attributed to a call of empty_cache" in output


def test_replay_prints_the_memory_of_each_device(cli: Cli, both: Path) -> None:
    output = flat(cli("replay", both, "-v").out)
    assert "Device memory device 0: 1024.00 MiB (1,073,741,824 bytes) device 1: unknown" in output


def test_device_option_chooses_one_device(cli: Cli, both: Path, tmp_path: Path) -> None:
    explained = json.loads(cli("explain", both, "--device", 1, "--json").out)
    assert [each["device"] for each in explained["devices"]] == [1]
    assert explained["ooms"] == []
    assert json.loads(cli("replay", both, "--device", 1, "--json").out)["devices"][0]["device"] == 1
    assert "Device          1" in cli("risk", both, "--device", 1, "-v").out
    assert "choose one (--device)" in cli("risk", both).err
    assert cli("step", both, "--device", 1).out.startswith("device 1, entry 1: ")
    assert cli("step", both).out.startswith("device 0, entry 1: ")
    assert json.loads(cli("step", both, "--device", 1, "--json").out)[0]["device"] == 1
    page = tmp_path / "page.html"
    done = cli("report", both, "-o", page, "--device", 1, "--no-what-if")
    assert "device 1 is shown; the recording also has device 0" in done.err
    assert "device 1 is shown; the recording also has device 0" in page.read_text(encoding="utf-8")


def test_explain_of_a_text_refuses_a_device(cli: Cli) -> None:
    done = cli("explain", "CUDA out of memory. Tried to allocate 2.00 GiB", "--device", 0)
    assert done.code == 2
    assert "--device selects a device of a recording" in done.err


def test_figure_names_its_device(cli: Cli, both: Path, tmp_path: Path) -> None:
    figure = tmp_path / "memory.svg"
    done = cli("plot", "memory", both, "-o", figure)
    assert "device 0 is shown; the recording also has device 1 (--device)" in done.err
    text = figure.read_text(encoding="utf-8")
    assert ", device 0" in text
    assert "device 0 is shown; the recording also has device 1" in flat(text)


def test_tune_names_each_part(cli: Cli, both: Path) -> None:
    done = cli("tune", both, "--try", "expandable_segments:True", "-v")
    assert "device 0: device memory 1024.00 MiB" in flat(done.out)
    assert "device 1: a release of cached memory" in flat(done.out)
    document = json.loads(cli("tune", both, "--try", "expandable_segments:True", "--json").out)
    assert [each["device"] for each in document["devices"]] == [0, 1]
    assert [part["device"] for part in document["baseline"]["parts"]] == [0, 1]
    one = json.loads(cli("tune", both, "--device", 1, "--try", "", "--json").out)
    assert [each["device"] for each in one["devices"]] == [1]
