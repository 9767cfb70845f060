"""Address space of a CUDA context: segments have the addresses that a real card gave them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from allocsim.phantom import CARDS, Stubs
from allocsim.recording import Action, load
from allocsim.units import MIB

H200 = Path(__file__).parents[2] / "traces" / "h200"
N_SEGMENTS = 13

PLACE = """
import ctypes, sys
device = ctypes.CDLL(sys.argv[1])
device.device_malloc.argtypes = device.device_launch.argtypes = [ctypes.c_size_t]
device.device_malloc.restype = ctypes.c_size_t
for word in sys.argv[2:]:
    print(device.device_malloc(int(word)))
    if int(word) == 2 << 20:  # torchvision initializes its parameters by kernels, one by one
        device.device_launch(0)
"""


def placed(libraries: Stubs, sizes: list[int], **variables: str) -> list[int]:
    """Return the addresses of requests; kernels are loaded after the first one of 2 MiB."""
    variables |= {"ALLOCSIM_PHANTOM_MEMORY": str(1 << 37), "ALLOCSIM_PHANTOM_POLICY": "driver"}
    variables |= {"ALLOCSIM_PHANTOM_BASE": str(0x700000000000)}
    command = [sys.executable, "-c", PLACE, str(libraries.device), *map(str, sizes)]
    environment = os.environ | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(not H200.exists(), reason="the recordings are in the repository only")
@pytest.mark.parametrize(
    "name",
    [
        *("cases/a100-063", "cases/a100-063-cl", "cases/a100-065", "cases/a100-066"),
        *("cases/a100-069", "programs/resnet_training-default"),
    ],
)
def test_segments_fill_the_chunks_of_the_context_as_on_the_card(
    libraries: Stubs, name: str
) -> None:
    [device] = load(H200 / f"{name}.npz.gz").devices
    rows = np.flatnonzero(device.action == int(Action.SEGMENT_ALLOC))[:N_SEGMENTS]
    sizes, addresses = device.size[rows].tolist(), device.addr[rows].tolist()
    chunks = CARDS["H200"].context_chunks
    found = placed(libraries, sizes, ALLOCSIM_PHANTOM_CONTEXT_CHUNKS=chunks)
    assert [each - found[0] for each in found] == [each - addresses[0] for each in addresses]


def test_unknown_context_has_no_chunks(libraries: Stubs) -> None:
    first, second = placed(libraries, [20 * MIB, 20 * MIB], ALLOCSIM_PHANTOM_CONTEXT_CHUNKS="")
    assert first - second == 32 * MIB


@pytest.mark.parametrize("text", ["nonsense", "33:1 2", "32:33 2", "32"])
def test_impossible_context_chunks_are_ignored(libraries: Stubs, text: str) -> None:
    sizes = [20 * MIB, 20 * MIB]
    assert placed(libraries, sizes, ALLOCSIM_PHANTOM_CONTEXT_CHUNKS=text) == placed(
        libraries, sizes
    )
