"""Python interpreters with a CUDA build of PyTorch, named by an environment variable.

Tests are skipped if no interpreter has the release of PyTorch that they need.
"""

from __future__ import annotations

import os
from functools import cache

import pytest

from allocsim.phantom.installs import find_torch
from benchmarks.laws.recorded import transformers_of

__all__ = ["NEEDS_TORCH", "PYTHONS", "python_of", "pythons_of"]

PYTHONS = [path for path in os.environ.get("ALLOCSIM_TORCH_PYTHON", "").split(os.pathsep) if path]
"""Paths in ALLOCSIM_TORCH_PYTHON, separated as in PATH."""

NEEDS_TORCH = pytest.mark.skipif(
    not PYTHONS, reason="ALLOCSIM_TORCH_PYTHON names no Python with torch"
)


@cache
def pythons_of(release: str) -> list[str]:
    """Return the interpreters with PyTorch `release`, e.g. "2.15"; skip the test if none."""
    found = [path for path in PYTHONS if find_torch(path).release == release]
    if not found:
        pytest.skip(f"ALLOCSIM_TORCH_PYTHON names no Python with torch {release}")
    return found


@cache
def python_of(release: str, transformers: str = "") -> str:
    """Return the first interpreter with PyTorch `release`, for data recorded with it.

    transformers: required release of transformers, e.g. "5.23". Skips the test if there is none.
    """
    for path in pythons_of(release):
        if not transformers or transformers_of(path).startswith(f"{transformers}."):
            return path
    pytest.skip(f"no Python with torch {release} has transformers {transformers}")
