"""Exact explanations of the out-of-memory errors of the golden cases.

A sample of each family always runs; `make test-slow` runs all 88,231 errors.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.analysis.explain.state_at_error import blockers_of, kinds_of
from allocsim.core import IS_COMPILED
from allocsim.state import BlockState
from allocsim.units import MIB
from tests.explain.golden import GoldenOom, golden_ooms, replayed
from tests.golden import cases, runner

FAMILIES = cases.names()

pytestmark = pytest.mark.skipif(
    IS_COMPILED, reason="looks on from a subclass, which a compiled allocator cannot have"
)


def check_kinds(oom: GoldenOom) -> None:
    """Check that the kinds add up to the device, and free memory equals that of PyTorch."""
    kinds = kinds_of(oom.moment)
    assert oom.moment.total_bytes == sum(kinds.values()), oom
    assert sum(kinds.values()) == oom.case["device_memory"], oom
    assert kinds["free"] == oom.free_bytes, oom
    assert min(kinds.values()) >= 0, oom


def is_answered(allocator: CachingAllocator, size: int, stream: int) -> bool:
    try:
        allocator.malloc(size, stream)
    except OutOfMemoryError:
        return False
    return True


def check_largest(oom: GoldenOom) -> None:
    """Check that the largest request succeeds and the next larger sizes fail."""
    largest, stream = oom.moment.largest_request_bytes, oom.op[3] * runner.HANDLE
    if largest:
        assert is_answered(replayed(oom), largest, stream), oom
    for more in (1, 512, 2 * MIB, 20 * MIB):
        assert not is_answered(replayed(oom), largest + more, stream), (oom, more)


def check_blockers(oom: GoldenOom) -> None:
    """Check that the request succeeds without the blockers, and fails with the smallest of them."""
    found = blockers_of(oom.moment)
    if found is None:
        return
    blocks = sorted(found.blocks, key=lambda block: block.size)
    assert is_answered_without(oom, blocks), oom
    if found.is_exact:
        assert not is_answered_without(oom, blocks[1:]), oom


def is_answered_without(oom: GoldenOom, blocks: Sequence[BlockState]) -> bool:
    allocator = replayed(oom)
    for block in blocks:
        allocator.free(block.address)
    allocator.synchronize()
    return is_answered(allocator, oom.op[2], oom.op[3] * runner.HANDLE)


@pytest.mark.parametrize("family", FAMILIES)
def test_kinds_of_memory_add_up_for_a_sample_of_golden_errors(family: str) -> None:
    found = list(golden_ooms(family, step=17, most=4))
    assert found
    for oom in found:
        check_kinds(oom)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_largest_request_and_the_blockers_of_a_sample(family: str) -> None:
    for oom in golden_ooms(family, step=67, most=1, offset=5):
        check_largest(oom)
        check_blockers(oom)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_kinds_of_memory_add_up_for_every_golden_error(family: str) -> None:
    for oom in golden_ooms(family):
        check_kinds(oom)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_largest_request_and_the_blockers_of_many(family: str) -> None:
    for oom in golden_ooms(family, step=3, most=4):
        check_largest(oom)
        check_blockers(oom)
