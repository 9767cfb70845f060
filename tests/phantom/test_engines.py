"""Serving engines over the phantom GPU, where an engine is installed.

The interpreters are those of ALLOCSIM_TORCH_PYTHON that have vLLM or SGLang.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from allocsim.phantom import Stubs, start_vllm
from tests.pythons import NEEDS_TORCH, PYTHONS

ENGINES = ("vllm", "sgl_kernel", "flashinfer", "deep_gemm")
"""Packages of engines that have compiled libraries."""
_OF_CUDA = re.compile(r"cu[A-Z]|cuda[A-Z]|__cuda|cublas|nvml|nccl")
"""Beginnings of the names of functions that the stubs replace."""


def _libraries() -> list[Path]:
    places = [Path(python).absolute().parent.parent / "lib" for python in PYTHONS]
    return [
        library
        for place in places
        for engine in ENGINES
        for library in sorted(place.glob(f"python3*/site-packages/{engine}/**/*.so"))
    ]


def _symbols(library: Path, kind: str) -> set[str]:
    command = ["nm", "--dynamic", kind, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}


@pytest.mark.skipif(not shutil.which("nm"), reason="nm is missing")
def test_stubs_have_every_function_of_an_engine(libraries: Stubs) -> None:
    """A library with a missing function does not load, or it calls the real one."""
    found = _libraries()
    if not found:
        pytest.skip("ALLOCSIM_TORCH_PYTHON names no Python with a serving engine")
    exported = set()
    for stub in libraries.folder.glob("*.so*"):
        exported |= _symbols(stub, "--defined-only")
    for library in found:
        required = filter(_OF_CUDA.match, _symbols(library, "--undefined-only"))
        assert set(required) <= exported, library


@NEEDS_TORCH
def test_one_rank_of_four_does_not_wait_for_the_others() -> None:
    """The messages of the other ranks are equal to its own."""
    program = Path(__file__).parent / "programs" / "one_rank.py"
    place = Path(start_vllm.__file__).parent
    done = subprocess.run(
        [PYTHONS[0], str(program), str(place)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "one rank of 4\n", done.stderr
