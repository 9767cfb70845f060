"""Memory of the driver, beside what starts of vLLM took on an H100 and in public logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocsim.phantom import DriverCharges, charges_of, find_gpu
from allocsim.units import GIB, KIB, MIB

_STARTS = json.loads((Path(__file__).parents[2] / "traces" / "h100" / "engines.json").read_text())


@pytest.mark.parametrize("name", _STARTS)
def test_charges_of_an_h100_are_what_vllm_saw_while_it_profiled(name: str) -> None:
    """The prediction of that day counted 1 MiB for each kernel, so it gives their number."""
    kernels = round(_STARTS[name]["predicted"]["driver"] * GIB / MIB)
    low, likely, high = (
        each.taken({"kernels": kernels}) / GIB
        for each in charges_of(find_gpu("H100"), 13, has_nccl=False)
    )
    seen = _STARTS[name]["card"]["driver"]
    assert low < seen < high
    assert likely == pytest.approx(seen, abs=0.025)


def test_charge_without_a_kernel_is_none() -> None:
    assert charges_of(find_gpu("H100"), 13, has_nccl=False)[1].taken({}) == 0


def test_charges_grow_with_the_threads_of_a_card_and_depend_on_cuda() -> None:
    sizes = {
        (card, cuda): charges_of(find_gpu(card), cuda, has_nccl=False)[1].modules / MIB
        for card in ("T4", "A100 80GB", "H100")
        for cuda in (12, 13)
    }
    assert sizes["T4", 13] < sizes["H100", 13]
    assert sizes["H100", 12] < sizes["H100", 13]
    assert sizes["A100 80GB", 13] == 30


def test_collectives_are_charged_with_nccl_only() -> None:
    counts = {"kernels": 1, "graph_bytes": 4 * MIB, "collective_graphs": 10}
    alone, shared = (
        charges_of(find_gpu("A100 PCIe"), 13, has_nccl=nccl)[1] for nccl in (False, True)
    )
    assert shared.taken(counts) - alone.taken(counts) == 10 * shared.collective
    assert alone.collective == 0


def test_variable_has_the_sizes_in_the_order_of_the_stubs() -> None:
    charges = DriverCharges(modules=5, kernel=1, node=2, graph=128 * KIB, collective=3)
    assert charges.variable == f"1 2 3 5 {128 * KIB}"
