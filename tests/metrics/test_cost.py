"""Estimated driver time, with manually computed figures and replaced costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocsim.errors import ConfigError
from allocsim.recommend.offer import Costs, cost_of, driver_time, read_costs
from allocsim.replaying import Trial
from allocsim.units import MIB

ROUND = Costs(
    cuda_malloc=10, cuda_free=20, map_handle=3, unmap_handle=2, synchronize=100, thrashing_above=1
)


def test_growth_alone_costs_one_cuda_malloc_a_segment() -> None:
    calls = (("malloc", 20 * MIB, 6), ("malloc", 40 * MIB, 2))
    cost = cost_of(Trial(peak_reserved_bytes=200 * MIB, driver_calls=calls), ROUND)
    assert (cost.growth, cost.churn, cost.is_thrashing) == (80, 0, False)


def test_churn_includes_memory_obtained_twice_and_waits() -> None:
    """Half of the memory is obtained twice: 40 of 80, with four frees and two waits."""
    twice = Trial(
        peak_reserved_bytes=100 * MIB,
        num_sync_all_streams=2,
        driver_calls=(("malloc", 25 * MIB, 8), ("free", 25 * MIB, 4)),
    )
    cost = cost_of(twice, ROUND)
    assert (cost.growth, cost.churn) == (40, 40 + 80 + 200)
    assert cost.is_thrashing
    assert not cost_of(twice, Costs(10, 20, 3, 2, 100, thrashing_above=8)).is_thrashing


def test_mapping_costs_by_the_handle_if_its_time_is_given() -> None:
    calls = (
        *(("create", 2 * MIB, 3), ("create", 20 * MIB, 10)),
        *(("map", 2 * MIB, 3), ("map", 100 * MIB, 2)),
    )
    mapped = Trial(peak_reserved_bytes=206 * MIB, driver_calls=calls)
    assert cost_of(mapped, ROUND).growth == pytest.approx((3 + 10) * 3)


def test_no_calls_cost_nothing() -> None:
    assert cost_of(Trial(), ROUND).total == 0


def test_calls_without_a_given_time_take_the_table() -> None:
    calls = (("malloc", 20 * MIB, 1), ("free", 20 * MIB, 1))
    table = Costs().table
    expected = table.of_call("malloc", 20 * MIB, 0.5) + table.of_call("free", 20 * MIB)
    assert driver_time(calls, Costs()) == pytest.approx(expected)
    some = Costs(cuda_free=7)
    assert driver_time(calls, some) == pytest.approx(table.of_call("malloc", 20 * MIB, 0.5) + 7)
    assert some.uses_table
    assert not ROUND.uses_table


def test_a_file_replaces_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"cuda_malloc": 512.5}))
    assert read_costs(path) == Costs(cuda_malloc=512.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "expected an object with some of cuda_malloc"),
        ('{"cudaMalloc": 1}', "'cudaMalloc' is not a cost"),
        ('{"cuda_malloc": -1}', "cuda_malloc is -1; expected microseconds"),
        ('{"cuda_malloc": true}', "cuda_malloc is True"),
        ('{"cuda_malloc": NaN}', "cuda_malloc is nan"),
    ],
)
def test_a_wrong_file_gets_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"costs\.json") as caught:
        read_costs(path)
    assert message in str(caught.value)
