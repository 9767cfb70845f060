"""The interpreters with a CUDA build of PyTorch that the environment names; tests that need one are
skipped where it names none."""

from __future__ import annotations

import os
from functools import cache

import pytest

from allocsim.phantom.launch import find_torch
from benchmarks.laws.recorded import transformers_of

__all__ = ["NEEDS_TORCH", "PYTHONS", "python_of", "pythons_of"]

PYTHONS = [path for path in os.environ.get("ALLOCSIM_TORCH_PYTHON", "").split(os.pathsep) if path]
"""ALLOCSIM_TORCH_PYTHON: paths as those of PATH."""

NEEDS_TORCH = pytest.mark.skipif(
    not PYTHONS, reason="ALLOCSIM_TORCH_PYTHON names no Python with torch"
)


@cache
def pythons_of(release: str) -> list[str]:
    """Those of them whose PyTorch is `release`, as "2.15"; the test is skipped where there is
    none."""
    found = [path for path in PYTHONS if find_torch(path).release == release]
    if not found:
        pytest.skip(f"ALLOCSIM_TORCH_PYTHON names no Python with torch {release}")
    return found


@cache
def python_of(release: str, transformers: str = "") -> str:
    """The first of them whose PyTorch is `release`, for what was recorded by it.

    transformers: the release of it that the recording is of, as "5.23".
    The test is skipped where there is none.
    """
    for path in pythons_of(release):
        if not transformers or transformers_of(path).startswith(f"{transformers}."):
            return path
    pytest.skip(f"no Python with torch {release} has transformers {transformers}")
