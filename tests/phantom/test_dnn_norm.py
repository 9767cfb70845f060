"""Workspaces of batch norm, compared with ResNet-50 and cuDNN 9.19 on an H200."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocsim.phantom import Stubs, find_gpu
from allocsim.recording import Action, load

CHANNELS_LAST = Path(__file__).parents[2] / "traces" / "h200" / "cases" / "a100-063-cl.npz.gz"
SPATIAL, SPATIAL_PERSISTENT = 1, 2
FLOAT, BFLOAT16 = 0, 9
BATCH = 64
SHAPES = [
    *((64, 112), (64, 56), (256, 56), (128, 56), (128, 28), (512, 28)),
    *((256, 28), (256, 14), (1024, 14), (512, 14), (512, 7), (2048, 7)),
]
"""Channels and side of the images of each batch norm of ResNet-50."""

ASK = """
import ctypes, json, sys
device, dnn = map(ctypes.CDLL, sys.argv[1:3])
mode, dtype, shapes = json.loads(sys.argv[3])
device.device_guesses.restype = ctypes.c_char_p

def ask(sizes, function, more):
    x, size = ctypes.c_void_p(), ctypes.c_size_t()
    array = (ctypes.c_int * len(sizes))(*sizes)
    assert dnn.cudnnCreateTensorDescriptor(ctypes.byref(x)) == 0
    assert dnn.cudnnSetTensorNdDescriptor(x, dtype, len(sizes), array, array) == 0
    function = getattr(dnn, f"cudnnGetBatchNormalization{function}ExWorkspaceSize")
    assert function(None, mode, 0, x, *([None] * more), ctypes.byref(size)) == 0
    assert dnn.cudnnDestroyTensorDescriptor(x) == 0
    return size.value

found = [[ask(each, "ForwardTraining", 4), ask(each, "Backward", 6)] for each in shapes]
print(json.dumps([found, device.device_guesses().decode()]))
"""


def asked(
    stubs: Stubs,
    shapes: Sequence[tuple[int, ...]],
    *,
    mode: int = SPATIAL_PERSISTENT,
    dtype: int = FLOAT,
) -> Any:
    """Return the bytes of each workspace, forward and backward, and the libraries that guessed."""
    gpu = find_gpu("H200")
    environment = os.environ | {
        "ALLOCSIM_PHANTOM_CAPABILITY": ".".join(map(str, gpu.capability)),
        "ALLOCSIM_PHANTOM_MULTIPROCESSORS": str(gpu.multiprocessors),
    }
    paths = map(str, (stubs.device, stubs.dnn))
    command = [sys.executable, "-c", ASK, *paths, json.dumps([mode, dtype, shapes])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def requests_of_card() -> set[tuple[int, ...]]:
    """Return each sequence of four successive requests on the card."""
    [device] = load(CHANNELS_LAST).devices
    sizes = device.size[device.action == int(Action.ALLOC)]
    runs = np.lib.stride_tricks.sliding_window_view(sizes, 4)
    return {tuple(map(int, run)) for run in np.unique(runs, axis=0)}


@pytest.mark.skipif(not CHANNELS_LAST.exists(), reason="the recordings are in the repository only")
def test_channels_last_workspaces_equal_the_card(libraries: Stubs) -> None:
    made = requests_of_card()
    shapes = [(BATCH, channels, side, side) for channels, side in SHAPES]
    workspaces, guesses = asked(libraries, shapes)
    assert not guesses
    for (_, channels, side, _), (forward, backward) in zip(shapes, workspaces, strict=True):
        values = BATCH * channels * side * side * 4
        assert forward != backward
        assert (values, channels * 4, channels * 4, forward) in made
        assert (values, channels * 4, channels * 4, backward) in made


def test_other_norm_modes_need_no_workspace(libraries: Stubs) -> None:
    assert asked(libraries, [(BATCH, 64, 56, 56)], mode=SPATIAL) == [[[0, 0]], ""]


def test_other_data_types_are_a_guess(libraries: Stubs) -> None:
    workspaces, guesses = asked(libraries, [(BATCH, 64, 56, 56)], dtype=BFLOAT16)
    assert workspaces == asked(libraries, [(BATCH, 64, 56, 56)])[0]
    assert guesses == "cuDNN"


def test_more_dimensions_than_cudnn_has_are_refused(libraries: Stubs) -> None:
    dnn = ctypes.CDLL(str(libraries.dnn))
    x = ctypes.c_void_p()
    sizes = (ctypes.c_int * 9)(*[1] * 9)
    assert dnn.cudnnCreateTensorDescriptor(ctypes.byref(x)) == 0
    assert dnn.cudnnSetTensorNdDescriptor(x, FLOAT, 9, sizes, sizes) != 0
    assert dnn.cudnnDestroyTensorDescriptor(x) == 0
