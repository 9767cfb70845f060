"""The programs, run again with the PyTorch that ALLOCSIM_TORCH_PYTHON names.

The variable names one or several interpreters, separated as in PATH, each with a CUDA build of
torch and with transformers, peft, torchvision and diffusers.  No GPU is needed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim import load, replay
from allocsim.phantom.gpu import Gpu, find_gpu
from allocsim.phantom.recorder import Recorded, RecordedProgram, record
from allocsim.units import GIB, MIB
from tests.pythons import NEEDS_TORCH, PYTHONS

PROGRAMS = sorted((Path(__file__).parents[2] / "traces" / "programs").glob("*.py"))
CARD = Gpu("allocsim phantom", 24 * GIB)

pytestmark = [
    pytest.mark.slow,
    NEEDS_TORCH,
]


def recorded(python: str, program: Path, out: Path, gpu: Gpu, *arguments: str) -> Recorded:
    return record(
        RecordedProgram((python, str(program), *arguments), out, gpu, output_to_stderr=True)
    )


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_it_runs_and_its_recording_comes_out_whole(
    python: str, program: Path, tmp_path: Path
) -> None:
    out = tmp_path / "snapshot.pickle"
    assert recorded(python, program, out, CARD).exit_code == 0
    (device,) = replay(load(out)).devices
    assert device.fidelity is not None
    assert device.fidelity.first_mismatch is None
    assert not device.ooms


QWEN2_MIB = {
    "2.15": {16: 14_736, 3000: 15_342, 10_000: 17_084},
    "2.6": {16: 14_736, 3000: 15_452, 10_000: 17_116},
}
"""Bytes reserved at the peak, by release and prompt tokens; 2.6 holds one more workspace."""


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("prompt", [16, 3000, 10_000])
def test_a_decoder_of_seven_billion_parameters_fits_a_card_of_24_gib(
    python: str, prompt: int, tmp_path: Path
) -> None:
    """The card is a Hopper, whose cuBLAS workspace is larger."""
    hopper = find_gpu("H100")
    gpu = Gpu(hopper.name, 24 * GIB, hopper.capability, hopper.multiprocessors)
    program = next(path for path in PROGRAMS if path.stem == "qwen2_decoding")
    out = tmp_path / "snapshot.pickle"
    assert recorded(python, program, out, gpu, "--prompt", str(prompt)).exit_code == 0
    run = replay(load(out))
    assert not run.devices[0].ooms
    if run.torch_version in QWEN2_MIB:
        assert run.devices[0].peak_reserved_bytes == QWEN2_MIB[run.torch_version][prompt] * MIB
