"""If another program holds most of a card, every answer says so first."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.units import GIB, MIB

Cli = Callable[..., Any]
SAID = (
    "another process holds 20.00 GiB of 24.00 GiB on this card; 4.00 GiB were left for this program"
)
GPU = Path(__file__).parents[3] / "shared" / "gpu"


def program(gpu: CachingAllocator) -> None:
    gpu.malloc(GIB)
    gpu.malloc(3 * GIB)


def captured(path: Path, **known: object) -> Path:
    """Write the recording of a program that runs out of memory beside 20 GiB of another program."""
    gpu = CachingAllocator("24GiB", context_memory=20 * GIB + 500 * MIB, record_history=True)
    with pytest.raises(OutOfMemoryError):
        program(gpu)
    made = {
        "torch_version": "2.15.0", "device_name": "NVIDIA GeForce RTX 4090",
        "device_memory": 24 * GIB, "context_memory": 20 * GIB + 500 * MIB,
        "captured": "at an out-of-memory error", **known,
    }  # fmt: skip
    path.write_bytes(pickle.dumps({**gpu.snapshot(), "allocsim": made}))
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return captured(tmp_path / "run.pickle", other_memory=20 * GIB, other_processes=1)


def words(text: str) -> str:
    return " ".join(text.split())


def test_replay_names_memory_outside_pytorch_if_it_is_much_of_the_device(
    cli: Cli, shared: Path
) -> None:
    small, large = (
        words(cli("replay", shared, "--device-memory", size, "--no-cure").out)
        for size in ("24GiB", "1TiB")
    )
    assert "on a device of 24.00 GiB (20.49 GiB outside PyTorch)" in small
    assert "outside PyTorch" not in large


@pytest.mark.parametrize("command", ["replay", "explain", "risk", "replay -v", "explain -v"])
def test_commands_begin_with_the_warning_of_a_shared_card(
    cli: Cli, shared: Path, command: str
) -> None:
    name, *options = command.split()
    done = cli(name, shared, *options)
    assert done.code == 0
    assert words(done.out).startswith(f"Warning {SAID} ")
    assert "CUDA context holds 20" not in words(done.out)


def test_report_begins_with_the_warning_of_a_shared_card(
    cli: Cli, shared: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert cli("report", shared, "-o", page, "--no-what-if").code == 0
    html = page.read_text()
    assert SAID in html
    assert html.index(SAID) < html.index("Verdict")


def test_explain_names_the_holders_of_the_device(cli: Cli, shared: Path) -> None:
    out = words(cli("replay", shared, "-v").out)
    held = "including 20.00 GiB used by other processes and 500.00 MiB used by this program's CUDA"
    assert held in out


def test_explain_json_separates_free_own_and_other_memory(cli: Cli, shared: Path) -> None:
    card = json.loads(cli("replay", shared, "--json").out)["card"]
    assert card == {
        "total_bytes": 24 * GIB,
        "outside_bytes": 20 * GIB + 500 * MIB,
        "context_bytes": 500 * MIB,
        "other_processes_bytes": 20 * GIB,
        "other_processes_range": [20 * GIB, 20 * GIB],
        "other_processes": 1,
        "is_estimated": False,
        "is_shared": True,
    }
    explained = json.loads(cli("explain", shared, "--json").out)
    assert explained["card"] == card
    assert explained["notes"][0] == SAID
    (oom,) = explained["ooms"]
    assert oom["kinds"]["other_processes"] == 20 * GIB
    assert oom["kinds"]["context"] == 500 * MIB
    assert sum(oom["kinds"].values()) == 24 * GIB


def test_replay_on_another_card_ignores_the_other_process(cli: Cli, shared: Path) -> None:
    """With --device-memory, the card has no other process, so 8 GiB are enough."""
    done = cli("replay", shared, "--device-memory", "8GiB", "--json")
    said = json.loads(done.out)
    assert said["card"] is None
    assert said["devices"][0]["ooms"] == []
    assert cli("tune", shared, "--device-memory", "8GiB", "--json").code == 0


def test_shared_card_replays_as_recorded(cli: Cli, shared: Path) -> None:
    said = json.loads(cli("replay", shared, "--device-memory", "24GiB", "--strict", "--json").out)
    assert len(said["devices"][0]["ooms"]) == 1
    assert said["devices"][0]["fidelity"]["is_exact"]


def test_usual_context_is_subtracted_if_none_is_recorded(cli: Cli, tmp_path: Path) -> None:
    path = captured(tmp_path / "run.pickle")
    assert words(cli("replay", path).out).startswith(
        "Warning another process holds about 19.8 GiB of 24.00 GiB on this card, or several do "
        "together; about 4.2 GiB were left for this program (estimated: what is in use outside "
        "PyTorch, less a usual CUDA context) "
    )


@pytest.mark.skipif(not GPU.is_dir(), reason="needs the recordings of a real card")
@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("oom/small-oom", "another process holds 131.69 GiB of 139.80 GiB"),
        ("oom/default-exit", "another process holds about 130.8 GiB of 139.80 GiB"),
        ("programs/cuda_graphs-gc", "another process holds about 25.4 GiB of 139.80 GiB"),
    ],
)
def test_recordings_of_a_real_card_name_the_other_program(cli: Cli, name: str, held: str) -> None:
    out = words(cli("replay", GPU / f"{name}.npz.gz", "--no-cure").out)
    assert out.startswith(f"Warning {held}")
    assert "CUDA context holds" not in out
