"""The core does what seven PyTorch releases did: 1,123 of 1,123 results.

Releases that did the same share a result.  The newest of each is asked always, of every second
case; all when asked for, and by `python -m tests.golden --select all`.
"""

from __future__ import annotations

from itertools import islice

import pytest

import allocsim
from tests.golden import cases, runner

SAMPLE = 2
"""Of so many cases one is asked always."""


def differences(family: str, *, asks_all: bool) -> list[str]:
    """What the core did otherwise than a release, in words."""
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
