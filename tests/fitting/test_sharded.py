"""Parallel training by formula: its ranges, its answer and its search."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import RESERVED_SEEN, find_layouts, model_of, precision_of, shape_of, shard
from allocsim.fitting.formulas.training import (
    MIXED,
    ParallelLayout,
    Precision,
    Training,
    TransformerShape,
    shape_for,
)
from allocsim.phantom import Gpu, find_gpu
from allocsim.units import GIB

ROOT = Path(__file__).parents[2]
TRUTH = [json.loads(line) for line in (ROOT / "traces/fit/truth.jsonl").read_text().splitlines()]
HUNDRED = Training("100 B", shape_for(100 * 10**9), ParallelLayout())
CARD = find_gpu("A100 80GB")


def test_the_range_of_reserved_memory_is_that_of_real_runs() -> None:
    ratios = [
        row["peak_reserved"] / row["peak_allocated"]
        for row in TRUTH
        if row["kind"] == "train" and "oom_in_step" not in row and row["peak_allocated"] > 8 * GIB
    ]
    tenths = quantiles(ratios, n=10)
    assert len(ratios) == 53
    assert (tenths[0], median(ratios), tenths[-1]) == pytest.approx(RESERVED_SEEN, abs=0.006)


@pytest.mark.parametrize(
    "name", ["gpt2", "Llama-3.2-1B", "Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B", "Llama-3-8B"]
)
def test_a_preset_has_the_parameters_that_pytorch_counted(name: str) -> None:
    counted = {row["model"]: row["parameters"] for row in TRUTH if not row.get("lora")}
    said = shape_of(model_of(name)).parameters
    if name in counted:
        assert said == counted[name]
    assert said == pytest.approx({"Qwen2.5-7B": 7_615_616_512}.get(name, said))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Mixtral-8x7B", 46_702_792_704),
        ("Gemma-2-9B", 9_241_705_984),
        ("Mistral-7B-v0.1", 7_241_732_096),
        ("Phi-3-mini", 3_821_079_552),
        ("Llama-3.1-405B", 405_853_388_800),
    ],
)
def test_other_presets_have_the_parameters_that_are_published(name: str, parameters: int) -> None:
    assert shape_of(model_of(name)).parameters == parameters


def test_shape_of_deepseek_v3_has_671_billion_parameters(tmp_path: Path) -> None:
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "vocab_size": 129280,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert shape_of(model_of(str(file))).parameters == pytest.approx(671.026e9, rel=1e-4)
    file.write_text(json.dumps({**config, "kv_lora_rank": None}))
    with pytest.raises(ConfigError, match="the configuration has no kv_lora_rank"):
        shape_of(model_of(str(file)))


def test_shape_of_refuses_a_model_that_is_no_decoder() -> None:
    for name in ("BERT-base", "ResNet-50", "my:model"):
        with pytest.raises(ConfigError, match="not described by the formulas"):
            shape_of(model_of(name))


def test_precision_of_gives_bytes_per_parameter() -> None:
    assert precision_of(None) == MIXED == Precision(weights=2, gradients=2, optimizer=12)
    assert precision_of(None, gradients=4).gradients == 4
    assert precision_of(None, "sgd").optimizer == 4
    assert precision_of(None, "adam8bit").optimizer == 6
    assert precision_of("bf16") == Precision(weights=2, gradients=2, optimizer=4)
    assert precision_of("fp32", "momentum") == Precision(
        weights=4, gradients=4, optimizer=4, compute=4
    )
    assert precision_of("autocast-bf16").compute == 2


def test_shard_says_may_not_fit_within_the_range() -> None:
    layout = ParallelLayout(tensor=8, data=8, zero=3)
    found = shard(replace(HUNDRED, layout=layout), CARD)
    assert found.fits is True
    assert found.headline().startswith("fits NVIDIA A100")
    room = round(found.allocated_bytes * 1.1)
    close = shard(found.training, Gpu("close", room + (CARD.memory - found.room_bytes)))
    assert close.fits is None
    assert close.likely_fits
    assert close.headline().startswith("may not fit close: likely")
    tight = shard(found.training, Gpu("tight", found.allocated_bytes))
    assert tight.fits is False
    assert tight.headline().startswith("does not fit tight")


def test_shard_counts_a_communicator_for_each_group_of_ranks() -> None:
    alone = shard(replace(HUNDRED, layout=ParallelLayout()), CARD)
    both = shard(replace(HUNDRED, layout=ParallelLayout(tensor=8, data=2)), CARD)
    assert (alone.communicators, both.communicators) == (0, 2)
    assert both.outside_bytes[0] - alone.outside_bytes[0] == 2 * 544 * 10**6


def test_plan_finds_the_fewest_cards_for_100_billion_parameters() -> None:
    found = find_layouts(HUNDRED, CARD)
    assert found.fewest == 24
    best = found.choices[0]
    assert best.answer.training.layout.ranks == 24
    assert all(each.answer.likely_fits for each in (*found.choices, *found.front))
    work = [each.extra for each in found.front]
    assert work == sorted(work, reverse=True)
    assert work[-1] == 0


def test_plan_finds_no_layout_on_fewer_cards() -> None:
    shape = TransformerShape(
        layers=8, width=4096, heads=32, kv_heads=8, head=128, inner=14336, vocabulary=32000
    )
    training = Training("small", shape, ParallelLayout(seq=1024))
    card = Gpu("small", 16 * GIB)
    found = find_layouts(training, card)
    assert found.fewest == 4
    for cards in (1, 2):
        assert find_layouts(training, card, cards=cards).fewest is None


def test_plan_omits_no_layout_that_fits() -> None:
    shape = TransformerShape(
        layers=8, width=4096, heads=32, kv_heads=8, head=128, inner=14336, vocabulary=32000
    )
    card = Gpu("small", 16 * GIB)
    found = find_layouts(
        Training("small", shape, ParallelLayout(seq=1024)), card, cards=8, micro_batch=1
    )
    chosen = {each.answer.training.layout for each in found.choices}
    fitting = set()
    for t, p in ((t, p) for t in (1, 2, 4, 8) for p in range(1, 9) if 8 % (t * p) == 0):
        data = 8 // (t * p)
        for zero in range(1 if data == 1 else 2 if p > 1 else 4):
            for recompute in ("none", "full"):
                layout = ParallelLayout(
                    tensor=t, pipeline=p, data=data, zero=zero, recompute=recompute, seq=1024
                )
                if shard(Training("small", shape, layout), card).likely_fits:
                    fitting.add(layout)
    assert len(fitting) > 5
    assert chosen == fitting


def test_plan_has_pipelines_that_do_not_divide_the_layers() -> None:
    """With 61 layers, four stages have 16, 15, 15 and 15, and the first one sets the pace."""
    shape = TransformerShape(
        layers=61, width=4096, heads=32, kv_heads=8, head=128, inner=14336, vocabulary=32000
    )
    training = Training("odd", shape, ParallelLayout(seq=1024))
    found = find_layouts(training, Gpu("large", 80 * GIB), cards=4, micro_batch=1)
    (four,) = [
        each
        for each in found.choices
        if each.answer.training.layout.pipeline == 4
        and each.answer.training.layout.recompute == "none"
    ]
    assert [len(four.answer.training.layout.layers_of(stage, 61)) for stage in range(4)] == [
        *(16, 15, 15, 15)
    ]
    assert four.answer.training.worst().stage == 0
    assert four.extra == pytest.approx((1 + 3 / 16) * 64 / 61 - 1)


def test_plan_keeps_to_the_given_cards_and_batch() -> None:
    found = find_layouts(HUNDRED, CARD, cards=64, micro_batch=2)
    assert {each.cards for each in found.choices} == {64}
    assert {each.answer.training.layout.micro_batch for each in found.choices} == {2}
    assert found.choices[0].extra == 0


def test_plan_has_no_count_if_nothing_fits() -> None:
    """The states alone are too large, so no layout is computed."""
    assert find_layouts(HUNDRED, CARD, cards=8).tried == 0
    close = find_layouts(replace(HUNDRED, layout=ParallelLayout(seq=1 << 17)), CARD, cards=32)
    assert close.fewest is None
    assert close.tried > 0
