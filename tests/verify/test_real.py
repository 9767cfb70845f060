"""Native allocators of the cached releases, compared with the golden cases.

Nothing is downloaded: a release that the cache lacks is skipped.  `python -m allocsim.phantom
fetch --torch 2.15` downloads one.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from allocsim.phantom import PhantomError, RefusedError, UnavailableError
from allocsim.verify import RealAllocator, Script
from allocsim.verify.__main__ import main
from allocsim.verify.comparison import check_case, load_case, stored_difference
from allocsim.verify.script import RealAnswer
from tests.golden.cases import Case, load, unpack

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


def test_golden_command_refuses_a_release_that_was_not_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALLOCSIM_CACHE", str(tmp_path))
    sentence = "torch 2.15.0 is not in the cache; python -m allocsim.phantom fetch --torch 2.15.0"
    with pytest.raises(UnavailableError) as caught:
        RealAllocator("2.15")
    assert str(caught.value).startswith(sentence)
    assert main(["golden", "--torch", "2.15", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"allocsim.verify: {caught.value}\n"


def test_load_case_refuses_another_file(tmp_path: Path) -> None:
    path = tmp_path / "case.json.gz"
    path.write_bytes(b"not gzip")
    with pytest.raises(PhantomError, match=r"case\.json\.gz: not a golden case \("):
        load_case(path)


def test_first_difference_is_named() -> None:
    results = RealAnswer("2.15.0", [0, None], {"num_ooms": 1}, [], [["oom", 0, 512, 0]], ["full"])
    equal = {
        "addresses": [0, None],
        "trace": [["oom", 0, 512, 0]],
        "segments": [],
        "stats": {"num_ooms": 1},
    }
    assert stored_difference(results, equal, ["full"]) is None
    assert (
        stored_difference(results, equal, ["Full"]) == "messages[0]: full where Full was expected"
    )
    other = {**equal, "stats": {"num_ooms": 2}}
    answer = "stats[num_ooms]: 1 where 2 was expected"
    assert stored_difference(results, other, ["full"]) == answer
    other = {**equal, "addresses": [0, None, 512]}
    assert stored_difference(results, other, []) == "addresses[2]: None where 512 was expected"


@pytest.mark.slow
@pytest.mark.parametrize("release", GOLDEN)
def test_golden_cases_equal_the_real_allocator(release: str) -> None:
    real = allocator(release)
    verdicts = [check_case(real, case) for case in cases()]
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    assert [verdict for verdict in verdicts if verdict.outcome == "different"] == []
    assert outcomes["equal"] == GOLDEN[release]


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
