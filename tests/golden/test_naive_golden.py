"""The naive model agrees with the golden cases: a sample in every run, all in the slow test."""

from __future__ import annotations

import pytest

from tests.golden import cases, runner
from tests.naive.model import NaiveAllocator

STEP = 401  # prime, so that the sample contains every release and most options


@pytest.mark.parametrize("family", cases.names())
def test_sample(family: str) -> None:
    pairs = [(case, release) for case in cases.load(family) for release in cases.releases(case)]
    for case, release in pairs[::STEP]:
        result = dict(cases.results(case))[release]
        assert runner.compare(case, release, result, NaiveAllocator) == [], case["name"]


@pytest.mark.slow
@pytest.mark.parametrize("family", cases.names())
def test_all(family: str) -> None:
    for case in cases.load(family):
        for release, result in cases.results(case):
            assert runner.compare(case, release, result, NaiveAllocator) == [], case["name"]
