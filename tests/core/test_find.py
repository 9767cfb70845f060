"""The compiled form's own search, which plain Python passes over, finds what bisect finds."""

from __future__ import annotations

import importlib.util
from bisect import bisect_left
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.core import constants, pool


@pytest.fixture(scope="module")
def as_compiled() -> ModuleType:
    """The module as it is when it has been compiled."""
    if constants.IS_COMPILED:
        return pool
    spec = importlib.util.spec_from_file_location("pool_as_compiled", pool.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "IS_COMPILED", True)
        spec.loader.exec_module(module)
    return module


KEYS = st.lists(st.integers(0, 40) | st.integers(1 << 60, 1 << 70)).map(sorted)


@given(keys=KEYS, key=st.integers(-1, 41) | st.integers(1 << 60, 1 << 70), data=st.data())
def test_it_finds_what_bisect_finds(
    as_compiled: ModuleType, keys: list[int], key: int, data: st.DataObject
) -> None:
    assert as_compiled.find(keys, key) == bisect_left(keys, key)
    high = data.draw(st.integers(0, len(keys)))
    low = data.draw(st.integers(0, high))
    assert as_compiled.find(keys, key, low, high) == bisect_left(keys, key, low, high)


def test_in_plain_python_it_is_bisect() -> None:
    found: object = pool.find
    assert (found is bisect_left) is not constants.IS_COMPILED
