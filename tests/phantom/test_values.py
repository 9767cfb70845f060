"""Integers and booleans of a phantom device have the values that they have on a card."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

from allocsim.phantom import Stubs
from tests.pythons import NEEDS_TORCH, PYTHONS

PROGRAMS = Path(__file__).parent / "programs"


def test_read_values_are_set_per_thread(libraries: Stubs) -> None:
    device = ctypes.CDLL(str(libraries.device), mode=ctypes.RTLD_GLOBAL)
    cudart = ctypes.CDLL(str(libraries.cudart))
    device.device_tell_reads.argtypes = (ctypes.c_int, ctypes.c_longlong)
    on_device = ctypes.c_void_p()
    cudart.cudaMalloc(ctypes.byref(on_device), ctypes.c_size_t(64))

    def read(size: int) -> int:
        on_host = ctypes.create_string_buffer(b"\xff" * size, size)
        cudart.cudaMemcpy(on_host, on_device, ctypes.c_size_t(size), 4)
        return int.from_bytes(on_host.raw, "little")

    assert [read(size) for size in (4, 8, 16)] == [0, 0, 0]
    device.device_tell_reads(2, 70_000)
    assert [read(size) for size in (4, 8, 16)] == [70_000, 70_000, 0]
    device.device_tell_reads(1, 70_000)
    assert read(8) == 0
    device.device_tell_reads(0, 0)
    assert read(4) == 0


def run(python: str, program: str, tmp_path: Path, *options: str) -> list[str]:
    """Return the lines that a program prints on a phantom H200; arguments follow its name."""
    command = [sys.executable, "-m", "allocsim", "record", "--gpu", "H200", *options]
    command += ["-o", str(tmp_path / "run.pickle"), "--", python, *program.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "stderr").write_text(done.stderr)
    return done.stdout.splitlines()


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_operators_give_the_values_of_the_host(python: str, tmp_path: Path) -> None:
    lines = run(python, str(PROGRAMS / "families.py"), tmp_path)
    rows = [json.loads(line) for line in lines]
    assert len(rows) > 80
    assert [row["name"] for row in rows if row["device"] != row["host"]] == []
    assert "reads values back" not in (tmp_path / "stderr").read_text()


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_number_is_copied_to_a_tensor_of_any_type(python: str, tmp_path: Path) -> None:
    """Scales of quantized layers in vLLM are set this way."""
    program = tmp_path / "copies.py"
    program.write_text(
        "import torch\n"
        "torch.zeros((), device='cuda').copy_(2.5)\n"
        "for kind, number in ((torch.int64, 3), (torch.bool, True), (torch.int32, 2.5)):\n"
        "    print(torch.zeros(2, device='cuda', dtype=kind).copy_(number).tolist())\n"
    )
    assert run(python, str(program), tmp_path) == ["[3, 3]", "[True, True]", "[2, 2]"]


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("seed", range(3))
def test_random_programs_of_integers_give_what_the_host_gives(
    python: str, seed: int, tmp_path: Path
) -> None:
    (line,) = run(python, f"{PROGRAMS / 'random_integers.py'} {seed} 400", tmp_path)
    report = json.loads(line)
    assert report["operations"] == 400
    assert report["different"] == []


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_computed_values_request_no_memory(python: str, tmp_path: Path) -> None:
    """If sizes do not depend on values, all entries are equal with and without values."""
    program = str(PROGRAMS / "same_sizes.py")
    with_values = run(python, program, tmp_path)
    without = run(python, program, tmp_path, "--no-values")
    assert with_values == without
    assert len(json.loads(with_values[0])) > 50


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_unknown_values_are_noted_as_reads(python: str, tmp_path: Path) -> None:
    lines = run(python, str(PROGRAMS / "unknown_values.py"), tmp_path)
    assert lines == ["[0, 0, 0]", "[0, 0, 0]", "[0, 0, 0]", "[7, 7, 7]"]
    report = (tmp_path / "stderr").read_text()
    assert "unknown_values.py:10" in report
    assert "unknown_values.py:13" in report
    assert "unknown_values.py:18" in report
    assert "unknown_values.py:21" not in report


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_router_gives_experts_the_tokens_of_the_routing(python: str, tmp_path: Path) -> None:
    program = str(PROGRAMS / "experts.py")
    assert run(python, program, tmp_path) == ["[8, 8, 8, 8]"]
    assert "spread evenly over the experts" in (tmp_path / "stderr").read_text()
    assert run(python, program, tmp_path, "--routing", "skewed") == ["[16, 16]"]
    assert "all tokens choose the same experts" in (tmp_path / "stderr").read_text()


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_values_do_not_change_compiled_code_autograd_and_vmap(python: str, tmp_path: Path) -> None:
    program = str(PROGRAMS / "transforms.py")
    assert run(python, program, tmp_path) == run(python, program, tmp_path, "--no-values")
