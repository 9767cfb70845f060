"""Stub libraries, compiled once, because a process has one phantom GPU."""

from __future__ import annotations

import pytest

from allocsim.errors import UnavailableError
from allocsim.phantom import Stubs, build_stubs


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Stubs:
    """Stubs for CUDA 13."""
    try:
        return build_stubs(tmp_path_factory.mktemp("stub"), 13)
    except UnavailableError as error:
        pytest.skip(str(error))
