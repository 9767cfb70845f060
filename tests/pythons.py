"""The interpreters with a CUDA build of PyTorch that the environment names; tests that need one are
skipped where it names none."""

from __future__ import annotations

import os
from functools import cache

import pytest

from allocsim.phantom.launch import find_torch

__all__ = ["NEEDS_TORCH", "PYTHONS", "python_of"]

PYTHONS = [path for path in os.environ.get("ALLOCSIM_TORCH_PYTHON", "").split(os.pathsep) if path]
"""ALLOCSIM_TORCH_PYTHON: paths as those of PATH."""

NEEDS_TORCH = pytest.mark.skipif(
    not PYTHONS, reason="ALLOCSIM_TORCH_PYTHON names no Python with torch"
)


@cache
def python_of(release: str) -> str:
    """The first of them whose PyTorch is `release`, as "2.15", for what was recorded by it; the
    test is skipped where there is none."""
    found = next((path for path in PYTHONS if find_torch(path).release == release), None)
    if found is None:
        pytest.skip(f"ALLOCSIM_TORCH_PYTHON names no Python with torch {release}")
    return found
