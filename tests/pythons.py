"""The interpreters with a CUDA build of PyTorch that the environment names; tests that need one are
skipped where it names none."""

from __future__ import annotations

import os

import pytest

__all__ = ["NEEDS_TORCH", "PYTHONS"]

PYTHONS = [path for path in os.environ.get("ALLOCSIM_TORCH_PYTHON", "").split(os.pathsep) if path]
"""ALLOCSIM_TORCH_PYTHON: paths as those of PATH."""

NEEDS_TORCH = pytest.mark.skipif(
    not PYTHONS, reason="ALLOCSIM_TORCH_PYTHON names no Python with torch"
)
