"""A wrong model is found, its script is minimised, and the printed test runs and fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocsim.core import RELEASES, ReplayAllocator
from allocsim.errors import RefusedError, UnavailableError
from allocsim.units import GIB, MIB
from allocsim.verify import RealAnswer, Script
from allocsim.verify.comparison import Divergence, judge, minimised
from allocsim.verify.crosscheck import CrossCheck, WheelSource, crosscheck
from allocsim.verify.script import Op

from .right_model import MISTAKE, RightModel, RightSource

SHARED: list[Op] = [["a", 1, 10 * MIB, 0]]
"""The wrong model requests 20 MiB from the driver."""


def executed(test: str) -> Any:
    """Return the function that a printed test defines."""
    namespace: dict[str, Any] = {}
    exec(test, namespace)  # noqa: S102
    (function,) = (v for k, v in namespace.items() if k.startswith("test_"))
    return function


def found_in(ops: list[Op], conf: str = "") -> Divergence:
    verdict = judge(RightModel("2.15"), Script(ops, GIB, conf))
    assert verdict.divergence is not None
    return verdict.divergence


def test_correct_model_has_no_divergence() -> None:
    check = CrossCheck((RightSource("2.15"), RightSource("2.3")), seed=7, ops=2000)
    seen: list[tuple[int, int]] = []
    report = crosscheck(check, lambda done, total: seen.append((done, total)))
    assert report.divergence is None
    assert report.tally.ops >= 4000
    assert {name for name, _ in report.tally.rows("release")} == {"2.15", "2.3"}
    assert [first for first, _ in report.seeds.values()] == [7, 7]
    assert seen[-1][1] == 4000 and seen == sorted(seen)


@pytest.mark.slow
def test_crosscheck_result_is_independent_of_the_number_of_processes() -> None:
    checks = [CrossCheck((RightSource("2.10"),), ops=2000, jobs=jobs) for jobs in (1, 2)]
    one, two = (crosscheck(check) for check in checks)
    assert one.tally.as_dict() == two.tally.as_dict()
    assert one.seeds == two.seeds


def test_wrong_model_is_found_minimised_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    check = CrossCheck((RightSource("2.15"),), ops=200_000, conf="")
    with monkeypatch.context() as patch:
        patch.setattr(*MISTAKE)
        report = crosscheck(check)
        found = report.divergence
        assert found is not None and report.tally.ops < 200_000
        assert len(found.script.ops) <= 8
        test = executed(found.as_test())
        with pytest.raises(AssertionError):
            test()
    test()  # passes with the corrected model


def test_shortest_script_needs_every_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKE)
    ops = [["S"], *SHARED, ["k"], ["e"]]
    found = minimised(found_in(ops), lambda s: judge(RightModel("2.15"), s).divergence)
    assert found.script.ops == SHARED


@pytest.mark.parametrize(
    ("ops", "field"),
    [
        (SHARED, "trace"),
        ([*SHARED, ["a", 2, 2 * MIB, 1]], "addresses"),
    ],
)
def test_each_kind_of_divergence_becomes_a_test_that_fails(
    ops: list[Op], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*MISTAKE)
        found = found_in(ops)
        assert found.difference.field == field
        with pytest.raises(AssertionError):
            executed(found.as_test())()
    executed(found.as_test())()


def test_difference_in_one_statistic_is_a_divergence() -> None:
    class CountsOneMore(RightModel):
        def run(self, script: Script) -> RealAnswer:
            results = super().run(script)
            return replace(results, stats=results.stats | {"num_ooms": 1})

    found = judge(CountsOneMore("2.15"), Script([["S"]], GIB)).divergence
    assert found is not None
    assert str(found.difference) == "stats[num_ooms]: 0 where 1 was expected"
    with pytest.raises(AssertionError):
        executed(found.as_test())()


def test_model_wrong_only_in_rows_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    class CarelessInRows(ReplayAllocator):
        def memory_stats(self) -> dict[str, int]:
            careless = self._has_fast_path
            return super().memory_stats() | ({"num_ooms": 3} if careless else {})

    monkeypatch.setattr("allocsim.verify.player.ReplayAllocator", CarelessInRows)
    found = judge(RightModel("2.15"), Script([["S"]], GIB)).divergence
    assert found is not None
    assert str(found.difference) == "stats[num_ooms]: 3 where 0 was expected"
    with pytest.raises(AssertionError):
        executed(found.as_test())()
    monkeypatch.undo()
    executed(found.as_test())()


def test_release_that_dies_is_a_divergence() -> None:
    class Dying(RightModel):
        def run(self, script: Script) -> RealAnswer:  # noqa: ARG002
            raise RefusedError("torch 2.15.0 died of SIGABRT: stopped at op 0")

    found = judge(Dying("2.15"), Script([["S"]], GIB)).divergence
    assert found is not None
    assert found.difference.field == "refused"
    with pytest.raises(AssertionError, match="died of SIGABRT"):
        executed(found.as_test())()


def test_conf_refused_by_only_one_side_is_a_divergence() -> None:
    class Accepting(RightModel):
        def run(self, script: Script) -> RealAnswer:
            return super().run(replace(script, conf=""))

    refused = Script([["S"]], GIB, "nonsense:1")
    assert judge(RightModel("2.15"), refused).end == "settings refused by both"
    assert judge(Accepting("2.15"), refused).divergence is not None


def test_stopped_script_is_compared_up_to_the_stop() -> None:
    """State after an assertion is unspecified: here the real allocator lost a segment."""

    class HalfWay(RightModel):
        def run(self, script: Script) -> RealAnswer:
            results = super().run(script)
            return replace(results, segments=[]) if results.stopped else results

    ops: list[Op] = [["a", 1, 512, 0], ["P", "e", 3], ["a", 2, 512, 0]]
    verdict = judge(HalfWay("2.15"), Script(ops, GIB))
    assert verdict.divergence is None
    assert verdict.end == "equal up to an internal assertion that stops both"
    assert verdict.script.ops == ops[:1]


def test_stop_at_another_op_is_a_divergence() -> None:
    class GoesOn(RightModel):
        def run(self, script: Script) -> RealAnswer:
            return super().run(script.with_ops([op for op in script.ops if op[0] != "P"]))

    found = judge(GoesOn("2.15"), Script([["P", "e", 3], ["a", 2, 512, 0]], GIB)).divergence
    assert found is not None
    assert found.difference.field == "stopped"
    with pytest.raises(AssertionError):
        executed(found.as_test())()


def test_comparison_ends_at_undefined_behaviour() -> None:
    ops: list[Op] = [
        ["a", 1, 10 * MIB, 0],
        ["a", 2, 90 * MIB, 0],
        ["f", 2],
        ["a", 3, 30 * MIB, 0],
        ["c", "max_split_size_mb:25"],
        ["a", 4, 80 * MIB, 0],
    ]
    verdict = judge(RightModel("2.15"), Script(ops, 100 * MIB))
    assert (verdict.divergence, verdict.end) == (None, "equal up to undefined behaviour")
    assert verdict.script.ops == ops[:-1]


def test_given_conf_applies_to_every_script() -> None:
    check = CrossCheck((RightSource("2.15"),), ops=3000, conf="expandable_segments:True")
    rows = dict(crosscheck(check).tally.rows("option"))
    assert [*rows] == ["expandable_segments"]


def test_real_allocator_refuses_a_release_that_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALLOCSIM_CACHE", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"fetch --torch 2\.14\.1 downloads it"):
        crosscheck(CrossCheck((WheelSource("2.14"),)))


@pytest.mark.slow
@pytest.mark.parametrize("torch", RELEASES)
def test_model_agrees_with_every_cached_release(torch: str) -> None:
    source = WheelSource(torch)
    try:
        source.open()
    except UnavailableError as error:
        pytest.skip(str(error))
    report = crosscheck(CrossCheck((source,), seed=900_000, ops=20_000))
    assert report.divergence is None, report.divergence.as_test()
