"""The model of time: every figure by hand, every one replaceable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocsim.engine import Trial
from allocsim.errors import ConfigError
from allocsim.measures.cost import Costs, cost_of, read_costs
from allocsim.units import MIB

ROUND = Costs(
    cuda_malloc=10, cuda_free=20, map_handle=3, unmap_handle=2, synchronize=100, thrashing_above=1
)


def test_growth_alone_is_a_cuda_malloc_a_segment() -> None:
    grown = Trial(peak_reserved_bytes=200 * MIB, num_device_alloc=8, obtained_large=200 * MIB)
    cost = cost_of(grown, 20 * MIB, ROUND)
    assert (cost.growth, cost.churn, cost.is_thrashing) == (80, 0, False)


def test_memory_got_twice_is_churn_and_so_is_waiting_for_it() -> None:
    """Half of what was obtained was obtained again: 40 of 80, eight frees, two waits."""
    twice = Trial(
        peak_reserved_bytes=100 * MIB,
        num_device_alloc=8,
        num_device_free=4,
        num_sync_all_streams=2,
        obtained_large=200 * MIB,
        returned_bytes=100 * MIB,
    )
    cost = cost_of(twice, 20 * MIB, ROUND)
    assert (cost.growth, cost.churn) == (40, 40 + 80 + 200)
    assert cost.is_thrashing
    assert not cost_of(twice, 20 * MIB, Costs(10, 20, 3, 2, 100, thrashing_above=8)).is_thrashing


def test_mapping_costs_by_the_handle_not_by_the_call() -> None:
    mapped = Trial(
        peak_reserved_bytes=206 * MIB,
        num_device_alloc=5,
        num_maps=5,
        obtained_small=6 * MIB,
        obtained_large=200 * MIB,
    )
    assert cost_of(mapped, 20 * MIB, ROUND).growth == pytest.approx((3 + 10) * 3)
    assert cost_of(mapped, 50 * MIB, ROUND).growth == pytest.approx((3 + 4) * 3)


def test_nothing_costs_nothing() -> None:
    assert cost_of(Trial(), 20 * MIB, ROUND).total == 0


def test_a_file_replaces_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"cuda_malloc": 512.5}))
    assert read_costs(path) == Costs(cuda_malloc=512.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "expected an object with some of cuda_malloc"),
        ('{"cudaMalloc": 1}', "'cudaMalloc' is no cost"),
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
