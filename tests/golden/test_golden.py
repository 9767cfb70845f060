"""The core agrees with seven PyTorch releases: 1,123 of 1,123 results.

Releases with equal results share one.  Every run tests the newest release of each result for every
fourth case; the slow test and `python -m tests.golden --select all` test all.
"""

from __future__ import annotations

from itertools import islice

import pytest

import allocsim
from tests.golden import cases, runner

SAMPLE = 4
"""Every run tests one case out of this number."""


def differences(family: str, *, asks_all: bool) -> list[str]:
    """Return the differences between the core and a release, as sentences."""
    found = []
    for case in islice(cases.load(family), 0, None, 1 if asks_all else SAMPLE):
        newest = {result["torch"][-1] for result in case["results"]}
        for release, result in cases.results(case):
            if asks_all or release in newest:
                for line in runner.compare(case, release, result, allocsim.CachingAllocator):
                    found.append(f"{case['name']} on {release}: {line}")
    return found


@pytest.mark.parametrize("family", cases.names())
def test_the_newest_release_of_the_results_of_a_sample(family: str) -> None:
    assert differences(family, asks_all=False) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", cases.names())
def test_every_result(family: str) -> None:
    assert differences(family, asks_all=True) == []
