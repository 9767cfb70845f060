"""Compare two ranks of an adapter in real PyTorch with the computed difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim import compare, load
from allocsim.cli import main
from allocsim.recording import Recording
from tests.compare.test_compare import adds_up
from tests.pythons import NEEDS_TORCH, PYTHONS

pytestmark = [pytest.mark.slow, NEEDS_TORCH]

LAYERS, WIDTH = 12, 768
BESIDES = (3, 1, 4, 4)
"""Other side of gpt2's projections, in widths: query, key and value; output; the two of the MLP."""


def recorded(path: Path, rank: int) -> Recording:
    asked = f"fit gpt2 --gpu A100-80GB --batch 1 --seq 64 --dtype fp32 --lora {rank}"
    assert main([*asked.split(), "--python", PYTHONS[0], "--out", str(path)]) == 0
    return load(path)


def test_a_higher_rank_is_wider_adapters_their_gradients_and_states(tmp_path: Path) -> None:
    a, b = (recorded(tmp_path / f"rank{rank}.pickle", rank) for rank in (8, 16))
    adapters = LAYERS * (16 - 8) * sum(WIDTH * (1 + each) for each in BESIDES) * 4
    for by in ("line", "category"):
        found = compare(a, b, by=by, at="end")
        adds_up(found)
    by_category = {each.owner: each for each in found.changes}
    assert by_category["parameters"].requested == adapters
    assert by_category["optimizer state"].requested == 2 * adapters
    adds_up(compare(a, b))
