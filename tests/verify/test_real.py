"""Native allocators of the cached releases, compared with the golden cases.

Nothing is downloaded: a release that the cache lacks is skipped.  `python -m allocsim.phantom
fetch --torch 2.15` downloads one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from allocsim.errors import PhantomError, RefusedError, UnavailableError
from allocsim.verify import RealAllocator, Script
from tests.golden.cases import Case, Result, load, unpack
from tests.golden.runner import first_difference

# Number of results of each release in the golden cases.
GOLDEN = {
    "2.15.0": 185,
    "2.11.0": 171,
    "2.9.1": 159,
    "2.8.0": 167,
    "2.6.0": 163,
    "2.4.1": 148,
    "2.1.2": 130,
}


@cache
def cases() -> list[Case]:
    return [unpack(case) for case in load()]


def allocator(release: str) -> RealAllocator:
    try:
        return RealAllocator(release)
    except UnavailableError as error:
        pytest.skip(str(error))


def test_a_release_that_was_not_fetched_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALLOCSIM_CACHE", str(tmp_path))
    sentence = "torch 2.15.0 is not in the cache; python -m allocsim.phantom fetch --torch 2.15.0"
    with pytest.raises(UnavailableError) as caught:
        RealAllocator("2.15")
    assert str(caught.value).startswith(sentence)


def differences(real: RealAllocator, case: Case, expected: Result) -> list[str]:
    """Return a sentence for each part of a case's result that `real` gives differently."""
    script = Script(case["ops"], case["device_memory"], case["conf"], case["address_policy"])
    try:
        found = real.run(script)
    except RefusedError as error:
        return [str(error)]
    if found.stopped is not None:
        return [f"stopped at op {found.stopped[0]} with {found.stopped[1]}"]
    texts = next(m["texts"] for m in expected["messages"] if real.torch_version in m["torch"])
    return [
        *first_difference("address", expected["addresses"], found.addresses),
        *first_difference("trace entry", expected["trace"], found.trace),
        *first_difference("segment", expected["segments"], found.segments),
        *first_difference("message", texts, found.messages[:20]),
        *(
            f"statistic {key}: expected {value}, got {found.stats.get(key)}"
            for key, value in expected["stats"].items()
            if found.stats.get(key) != value
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("release", GOLDEN)
def test_golden_cases_equal_the_real_allocator(release: str) -> None:
    real = allocator(release)
    stored = [
        (case, expected)
        for case in cases()
        for expected in case["results"]
        if release in expected["torch"]
    ]
    assert len(stored) == GOLDEN[release]
    assert [found for pair in stored if (found := differences(real, *pair))] == []


@pytest.mark.slow
def test_real_allocator_runs_other_scripts_than_golden_ones() -> None:
    real = allocator("2.15")
    ops: list[list[Any]] = [
        ["a", 1, 1000, 0],
        ["P", "b", 1, True, False],
        ["a", 2, 1000, 0],
        ["P", "e", 1],
        ["P", "r", 1],
        ["a", 3, 1 << 60, 0],
        ["c", "max_split_size_mb:64"],
        ["k"],
        ["K"],
        ["f", 2],
        ["e"],
        ["a", 4, 0, 0],
    ]
    results = real.run(Script(ops, 1 << 30, base_address=1 << 40))
    base, page = 1 << 40, 2 << 20
    assert results.addresses == [base, base + page, None, None]
    assert results.messages == ["CUDA out of memory. Tried to allocate more than 1EB memory."]
    assert results.stats["allocated_bytes.all"] == [1024, 1024 + page, 0, page]
    assert results.stopped is None
    assert results.trace[-2] == ["segment_free", base + page, page, 0]


@pytest.mark.slow
def test_real_allocator_reports_refusals_and_stops() -> None:
    real = allocator("2.15")
    with pytest.raises(RefusedError, match=r"^torch 2\.15\.0 failed: Unrecognized key 'no' in"):
        real.run(Script([], 1 << 30, conf="no:1"))
    stopped = real.run(Script([["a", 1, 5, 0], ["c", "no:1"]], 1 << 30)).stopped
    assert stopped is not None
    assert stopped[0] == 1
    assert stopped[1].startswith("Unrecognized key 'no'")


@pytest.mark.slow
def test_time_repeats_the_same_work() -> None:
    real = allocator("2.15")
    ops: list[list[Any]] = [["a", n, 1 << 20, 0] for n in range(1000)]
    ops += [["P", "b", 1], ["a", 0, 5, 0]]
    seconds = real.time(Script(ops, 1 << 30), repeats=4)
    assert len(seconds) == 4
    assert all(0 < second < 1 for second in seconds)
    with pytest.raises(PhantomError, match="repeats 0 is not a count of passes"):
        real.time(Script([], 1 << 30), repeats=0)
