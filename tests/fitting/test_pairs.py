"""Trainings on pairs of sequences with a reference, such as DPO.

`benchmarks.preference` ran TRL and the programs of `fit` over a phantom GPU; the peaks are stored.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import Task, estimate, model_of, program_of, shape_of
from allocsim.fitting.advice import advise
from allocsim.fitting.by_law import run_by_law
from allocsim.fitting.formulas.training import BY_SEQUENCE, Precision
from allocsim.fitting.formulas.training.kept import logits_of_pairs
from allocsim.fitting.task import REFERENCES
from allocsim.phantom import find_gpu
from benchmarks.preference.__main__ import RAN, digest_of, tasks

STORED = json.loads(RAN.read_text())
TASKS = tasks()
BY_TRL = {name: task for name, task in TASKS.items() if "trl" in STORED[name]}
CARD = find_gpu("A100 80GB")


def task(model: str = "Llama-3.2-1B", **more: Any) -> Task:
    return Task(model=model_of(model), batch=2, seq=512, **more)


def parts(task: Task) -> dict[str, int]:
    return {part.name: part.high for part in estimate(task, CARD).parts}


def peaks(name: str) -> list[list[int]]:
    return [STORED[name][by] for by in ("program", "trl") if by in STORED[name]]


def test_each_training_ran_with_the_program_of_today() -> None:
    digests = {name: ran["digest"] for name, ran in STORED.items()}
    assert digests == {name: digest_of(each) for name, each in TASKS.items()}


@pytest.mark.parametrize("name", BY_TRL)
def test_program_allocates_and_reserves_what_trl_does(name: str) -> None:
    (allocated, reserved), (allocated_by_trl, reserved_by_trl) = peaks(name)
    assert allocated == pytest.approx(allocated_by_trl, rel=0.005)
    assert reserved == pytest.approx(reserved_by_trl, rel=0.02)


@pytest.mark.parametrize("name", TASKS)
def test_formula_reserves_a_range_with_the_peak_of_real_pytorch(name: str) -> None:
    found = estimate(TASKS[name], CARD)
    outside = next(part for part in found.parts if part.name == "CUDA context")
    for _, reserved in peaks(name):
        assert found.process_bytes[0] - outside.low <= reserved <= found.needed_bytes


@pytest.mark.parametrize("name", TASKS)
def test_formula_allocates_less_only_without_checkpointing(name: str) -> None:
    least = -0.02 if "checkpointing" in name else -0.15
    for allocated, _ in peaks(name):
        assert least < estimate(TASKS[name], CARD).peak_allocated_bytes / allocated - 1 < 0.005


@pytest.mark.parametrize(
    ("reference", "more", "n_bytes"),
    [("copy", {}, 4), ("half-copy", {}, 2), ("copy", {"lora": 8}, 4), ("adapter", {"lora": 8}, 0)],
)
def test_formula_adds_the_weights_of_a_copy_in_its_type(
    reference: str, more: dict[str, Any], n_bytes: int
) -> None:
    found = parts(task(dtype="autocast-bf16", reference=reference, **more))
    assert found.get("reference model", 0) == n_bytes * found["weights"] // 4
    assert n_bytes == 0 or found["reference model"] > 2 * 10**9


def test_copy_is_sharded_by_fsdp_and_whole_with_ddp() -> None:
    fsdp, ddp = (
        parts(task(reference="copy", parallel=kind, ranks=4))["reference model"]
        for kind in ("fsdp", "ddp")
    )
    assert fsdp == pytest.approx(ddp / 4)


def test_output_layer_of_a_sharded_copy_stays_gathered() -> None:
    sharded: dict[str, Any] = {"parallel": "fsdp", "ranks": 4}
    shape = shape_of(model_of("Llama-3.2-1B"))
    found = parts(task(reference="copy", **sharded))["reference's embeddings, gathered"]
    assert found == 2 * (shape.embedding + shape.width)
    assert "reference's embeddings, gathered" not in parts(task(**sharded))


def test_logits_of_the_reference_pass_exist_beside_those_of_the_model() -> None:
    logits = 2 * 2 * 512 * 128_256
    adapter: dict[str, Any] = {"lora": 8, "checkpointing": True, "reference": "adapter"}
    by_sequence = parts(task(**adapter))["logits of both models"]
    whole = parts(task(**adapter, whole_softmax=True))["logits of both models"]
    assert by_sequence == 12 * (logits + 128 * 128_256)
    assert whole == 20 * logits


def test_output_layer_of_a_32_bit_copy_is_converted_beside_few_logits() -> None:
    shape, tokens = shape_of(model_of("Llama-3-8B")), 256
    found = logits_of_pairs(shape, tokens, BY_SEQUENCE, Precision(weights=4, reference=4))
    assert found.size == 6 * tokens * 128_256 + 2 * 4096 * 128_256
    half = logits_of_pairs(shape, tokens, BY_SEQUENCE, Precision(weights=4, reference=2))
    assert half.size == 12 * (tokens + 128) * 128_256


@pytest.mark.parametrize("reference", REFERENCES)
def test_laws_refuse_a_training_with_a_reference(reference: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no law for reference '{reference}'"):
        run_by_law(task(reference=reference, lora=8), CARD)


def test_program_runs_a_frozen_copy_without_gradients() -> None:
    text = program_of(task(reference="half-copy", dtype="autocast-bf16"))
    assert 'ids = torch.randint(0, config.vocab_size, (4, 512), device="cuda")' in text
    assert "config, dtype=torch.bfloat16" in text
    assert "reference.requires_grad_(False).eval()" in text
    assert "others, frozen = log_probabilities(reference)" in text
    sharded = program_of(task(reference="copy", parallel="fsdp", ranks=2))
    assert sharded.count("fully_shard(part)") == 2


@pytest.mark.parametrize("more", [{"quant": "nf4"}, {}, {"parallel": "ddp", "ranks": 2}])
def test_program_makes_a_copy_on_the_card_unless_it_is_sharded(more: dict[str, Any]) -> None:
    text = program_of(task(reference="copy", lora=8, **more))
    assert 'with torch.device("cuda"):\n    reference = ' in text
    sharded = program_of(task(reference="copy", lora=8, parallel="fsdp", ranks=2))
    assert 'with torch.device("meta"):\n    reference = ' in sharded
    assert 'reference.to_empty(device="cuda")' in sharded


@pytest.mark.parametrize(("model", "high"), [("Qwen3.5-4B", 1.65), ("Llama-3.2-1B", 1.35)])
def test_range_of_reserved_memory_is_the_widest_that_applies(model: str, high: float) -> None:
    found = estimate(task(model, reference="copy"), CARD)
    assert found.needed_bytes == pytest.approx(high * found.peak_allocated_bytes)
    reserved = found.process_bytes[0] - sum(part.low for part in found.parts if "CUDA" in part.name)
    assert reserved == found.peak_allocated_bytes


def test_program_of_an_adapter_disables_it_for_the_reference() -> None:
    text = program_of(task(reference="adapter", lora=8, whole_softmax=True))
    assert "with torch.no_grad(), adapted.disable_adapter():" in text
    assert "reference" not in text.partition("import")[2]


@pytest.mark.parametrize(
    ("model", "more", "sentence"),
    [
        ("gpt2", {"reference": "adapter"}, "reference adapter needs lora"),
        ("gpt2", {"reference": "copy", "is_training": False}, "for training a decoder of text"),
        ("T5-small", {"reference": "copy"}, "for training a decoder of text"),
        ("gpt2", {"whole_softmax": True}, "whole_softmax needs reference"),
        ("gpt2", {"reference": "twin"}, "expected one of copy, half-copy, adapter"),
    ],
)
def test_task_refuses_an_impossible_reference(
    model: str, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        task(model, **more)


def test_advice_for_full_dpo_with_adapters_needs_no_copy() -> None:
    found = estimate(task("Qwen3-8B", reference="copy", checkpointing=True), CARD)
    assert found.fits is False
    options = [change.options for change in advise(found).changes]
    assert "--lora 16 --reference adapter" in options
