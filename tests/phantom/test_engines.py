"""Serving engines over the phantom GPU, where an engine is installed.

The interpreters are those of ALLOCSIM_TORCH_PYTHON that have vLLM or SGLang.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from allocsim.phantom import Stubs
from tests.pythons import PYTHONS

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
def test_stubs_have_every_function_that_an_engine_requires(libraries: Stubs) -> None:
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
