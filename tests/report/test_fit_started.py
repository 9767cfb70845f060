"""Answer of an engine that was started on a phantom GPU."""

from __future__ import annotations

from dataclasses import replace

from allocsim.fitting import Phase, Started
from allocsim.phantom import find_gpu
from allocsim.report.fit_started import document, text
from allocsim.units import GIB
from tests.schemas import wrong_with

_FOUND = Started(
    model="Llama-3.1-8B",
    address="meta-llama/Llama-3.1-8B",
    gpu=find_gpu("H100"),
    engine="vLLM 0.33.0",
    arguments=("--max-num-seqs", "4", "--max-model-len", "8192"),
    cards=1,
    phase=Phase.READY,
    sizes={
        "weights_bytes": 15 * GIB,
        "consumed_bytes": 15.5 * GIB,
        "activation_bytes": 2 * GIB,
        "kv_cache_bytes": 53 * GIB,
        "kv_cache_tokens": 434_176,
        "graphs_estimate_bytes": 0.7 * GIB,
        "graphs_bytes": 0.4 * GIB,
        "fraction": 0.92,
        "concurrency": 53.0,
        "max_model_len": 8192,
    },
    peak_bytes=72 * GIB,
    failure="",
    refusals=(),
    hollow="flashinfer sampling",
    invented="number of sampled tokens",
    torch_version="2.14.0",
    seconds=30.0,
    driver={"kernels": 100, "nodes": 0, "collective_graphs": 0},
    driver_range=(60 << 20, 80 << 20),
    charged=64 << 20,
    searched="max-model-len",
)
"""A start with 100 kernels; 8 tokens are 1 MiB."""


def test_screen_of_a_started_engine_has_the_line_to_paste_and_fits_22_lines() -> None:
    lines = text(_FOUND).splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    joined = " ".join(" ".join(lines).split())
    assert "Largest --max-model-len 8192, which was started" in joined
    assert "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 4 --max-model-len 8192" in joined


def test_room_of_a_started_engine_follows_from_the_range_of_the_driver() -> None:
    low, high = 434_176 + (64 - 80) * 8, 434_176 + (64 - 60) * 8
    assert _FOUND.room == (low, high)
    assert f"{low:,} to {high:,} tokens" in " ".join(text(_FOUND).split())


def test_a_search_without_a_working_value_says_so() -> None:
    failed = replace(_FOUND, phase=Phase.CACHE, failure="it failed", arguments=())
    assert "no --max-model-len was found with which it starts" in text(failed)


def test_document_of_a_started_engine_has_the_schema() -> None:
    found = document(_FOUND)
    assert wrong_with("fit", {"schema_version": 1, **found}) == ""
    assert found["start"]["driver"] == {
        "kernels": 100, "nodes": 0, "collective_graphs": 0, "bytes": list(_FOUND.driver_range)
    }  # fmt: skip


def test_text_says_by_how_much_a_first_start_differs_from_a_later_one() -> None:
    first = " ".join(text(replace(_FOUND, tuning_bytes=2 * GIB)).split())
    later = " ".join(text(replace(_FOUND, tuning_bytes=-2 * GIB)).split())
    assert "keeps 2.00 GiB for variants of kernels that Triton tries in a first start" in first
    assert "later starts have that much more" in first
    assert "this is a later one" in later


def test_estimate_of_graphs_that_the_engine_does_not_print_is_left_out() -> None:
    sizes = {name: size for name, size in _FOUND.sizes.items() if "estimate" not in name}
    assert "estimated" not in str(document(replace(_FOUND, sizes=sizes))["breakdown"])


def test_text_has_the_number_of_graphs_with_collectives_of_nccl() -> None:
    found = replace(_FOUND, driver={**_FOUND.driver, "collective_graphs": 8})
    assert "NCCL is used in 8 graphs" in " ".join(text(found).split())
