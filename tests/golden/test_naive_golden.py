"""The naive model agrees with the golden cases: a sample in every run, all in the slow test."""

from __future__ import annotations

import pytest

from tests.golden import cases, runner
from tests.naive.model import NaiveAllocator

FAMILIES = cases.names()


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=FAMILIES)
def test_a_result_of_each_family(number: int) -> None:
    family = FAMILIES[number]
    pairs = [(case, release) for case in cases.load(family) for release in cases.releases(case)]
    case, release = pairs[37 * number % len(pairs)]  # another release in nearly every family
    result = dict(cases.results(case))[release]
    assert runner.compare(case, release, result, NaiveAllocator) == [], case["name"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_all(family: str) -> None:
    for case in cases.load(family):
        for release, result in cases.results(case):
            assert runner.compare(case, release, result, NaiveAllocator) == [], case["name"]
