"""Ranks of parallel trainings, compared with models, papers and real runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.training import (
    EAGER,
    FUSED,
    MIXED,
    ParallelLayout,
    Precision,
    Training,
    TransformerShape,
    kept_of_layer,
    refuse_impossible,
    shape_for,
)
from allocsim.units import GIB
from tests.formulas.papers import (
    first_stage_activations,
    interleaving_factor,
    layer_activations,
    zero_states,
)

GPT3 = TransformerShape(
    layers=96,
    width=12288,
    heads=96,
    kv_heads=96,
    head=128,
    inner=4 * 12288,
    vocabulary=51200,
    is_tied=True,
    is_gated=False,
    positions=2048,
    has_biases=True,
    dropout=True,
)
LLAMA_70B = TransformerShape(
    layers=80, width=8192, heads=64, kv_heads=8, head=128, inner=28672, vocabulary=128256
)
MEGATRON = Precision(gradients=4)


def part(name: str, shape: TransformerShape, layout: ParallelLayout) -> int:
    found = Training("", shape, layout).rank(0)
    return next(each.size for each in found.parts if each.name == name)


def test_parameters_are_those_of_the_models() -> None:
    assert GPT3.parameters == 96 * (12 * 12288**2 + 13 * 12288) + 53248 * 12288 + 2 * 12288
    assert LLAMA_70B.parameters == 70_553_706_496
    assert replace(LLAMA_70B, layers=32, width=4096, heads=32, inner=14336).parameters == (
        8_030_261_248
    )


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("flash", [False, True])
def test_gpts_layer_counted_by_tensors_is_the_papers_formula(
    t: int, sequence_parallel: bool, flash: bool
) -> None:
    """The difference is the sums that a flash kernel keeps: 4 bytes for each head and token."""
    layout = ParallelLayout(tensor=t, sequence_parallel=sequence_parallel, flash=flash, seq=2048)
    kept = sum(kept_of_layer(GPT3, layout, 0, FUSED).values())
    sums = 4 * 96 * 2048 / t * flash
    assert kept - sums == pytest.approx(
        layer_activations(2048, 1, 12288, 96, t, sequence_parallel=sequence_parallel, flash=flash)
    )


def test_selective_recomputation_drops_the_scores_alone() -> None:
    scores = ParallelLayout(seq=2048, flash=False)
    whole = kept_of_layer(GPT3, scores, 0, FUSED)
    left = kept_of_layer(GPT3, replace(scores, recompute="selective"), 0, FUSED)
    assert whole.keys() - left.keys() == {"attention scores"}
    assert sum(left.values()) == 34 * 2048 * 12288


@pytest.mark.parametrize("stage", range(4))
def test_states_are_zeros_formula(stage: int) -> None:
    shape, layout = replace(GPT3, dropout=False), ParallelLayout(data=64, zero=stage)
    found = Training("", shape, layout).rank(0).parts
    states = sum(each.size for each in found if each.name in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(zero_states(GPT3.parameters, 64, stage), rel=1e-9)


def test_megatrons_distributed_optimizer_is_6_and_12_over_d() -> None:
    layout = ParallelLayout(data=8, zero=1)
    found = Training("", GPT3, layout, MEGATRON).rank(0).parts
    states = sum(each.size for each in found if each.name in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(GPT3.parameters * (6 + 12 / 8), rel=1e-9)


def test_the_first_stage_holds_all_layers_worth_of_activations() -> None:
    """This is equation 5, with its factor for interleaving."""
    one = ParallelLayout(seq=2048, tensor=8)
    piped = replace(one, pipeline=8)
    layer = sum(kept_of_layer(GPT3, one, 0, FUSED).values())
    assert part("activations", GPT3, piped) == round(first_stage_activations(layer, 96))
    twice = replace(piped, chunks=3)
    assert twice.in_flight(0) == pytest.approx(8 * interleaving_factor(8, 3))


def test_a_later_stage_holds_fewer_micro_batches_and_none_more_than_there_are() -> None:
    layout = ParallelLayout(pipeline=4, seq=1024)
    assert [layout.in_flight(stage) for stage in range(4)] == [4, 3, 2, 1]
    assert replace(layout, micro_batches=2).in_flight(0) == 2


def test_the_worst_rank_is_named() -> None:
    """With a long sequence it is in the first stage, with a large vocabulary in the last."""
    long = Training("", LLAMA_70B, ParallelLayout(pipeline=8, seq=16384), MEGATRON).worst()
    assert (long.stage, long.moment) == (0, "backward of a layer")
    wide = replace(LLAMA_70B, layers=8, vocabulary=1_000_000)
    last = Training("", wide, ParallelLayout(pipeline=2, seq=4096), MEGATRON).worst()
    assert (last.stage, last.moment) == (1, "loss")


@pytest.mark.parametrize(
    ("layout", "measured"),
    [
        (ParallelLayout(tensor=1, pipeline=2, data=4, zero=1, micro_batches=4), 66.55),
        (ParallelLayout(tensor=2, data=4, zero=1), 60.68),
        (ParallelLayout(tensor=8, zero=1), 28.29),
        (ParallelLayout(context=8, zero=1, seq=131072), 147.99),
    ],
)
def test_megatron_on_eight_cards_as_it_was_measured(
    layout: ParallelLayout, measured: float
) -> None:
    """The model is 12 layers of Llama-3-70B on B200s; benchmarks.parallel has every row."""
    shape = replace(LLAMA_70B, layers=12)
    found = Training("", shape, layout, MEGATRON).worst().allocated / GIB
    assert found == pytest.approx(measured, rel=0.004)


@pytest.mark.parametrize(
    ("sizes", "layout", "billions"),
    [
        ((6144, 48, 64), ParallelLayout(tensor=8, micro_batch=4), 22),
        ((12288, 96, 96), ParallelLayout(tensor=8, pipeline=8, chunks=3), 175),
        ((20480, 105, 128), ParallelLayout(tensor=8, pipeline=35, chunks=3), 530),
        ((25600, 128, 160), ParallelLayout(tensor=8, pipeline=64), 1000),
    ],
)
def test_the_papers_four_models_fit_80_gb_by_its_techniques_alone(
    sizes: tuple[int, int, int], layout: ParallelLayout, billions: int
) -> None:
    """See Korthikanti et al., figure 1 and table 3; sequences of 2,048 tokens."""
    width, layers, heads = sizes
    more: dict[str, Any] = {
        "heads": heads,
        "kv_heads": heads,
        "head": width // heads,
        "inner": 4 * width,
    }
    shape = replace(GPT3, layers=layers, width=width, **more)
    assert shape.parameters == pytest.approx(billions * 1e9, rel=0.03)
    before = replace(layout, seq=2048, sequence_parallel=False, flash=False)
    after = replace(before, sequence_parallel=True, recompute="selective")
    assert Training("", shape, before, MIXED).worst().allocated > 80e9
    assert Training("", shape, after, MIXED).worst().allocated < 80e9


def test_distributed_data_parallel_holds_its_buckets_beside_the_gradients() -> None:
    small = replace(LLAMA_70B, layers=4, width=1024, heads=8, inner=3584, vocabulary=1000)
    alone = Training("", small, ParallelLayout(seq=128), MIXED, EAGER).worst()
    shared = Training("", small, ParallelLayout(seq=128, data=4), MIXED, EAGER).worst()
    assert alone.moment == shared.moment
    assert shared.allocated - alone.allocated == 2 * small.parameters


def test_zero_2_and_3_count_what_they_send_and_gather() -> None:
    shape, layout = replace(LLAMA_70B, vocabulary=32000), ParallelLayout(data=8, zero=2)
    assert part("bucket of gradients", shape, layout) == 500_000_000 * 2
    three = replace(layout, zero=3)
    layer = shape.layer(0)
    assert part("this layer and the next, gathered", shape, three) == 2 * layer * 2


def test_experts_are_spread_over_ranks() -> None:
    shape = replace(LLAMA_70B, layers=2, experts=8, chosen=2, expert_inner=14336, shared_inner=0)
    alone = Training("", shape, ParallelLayout(data=8)).rank(0).parameters
    spread = Training("", shape, ParallelLayout(data=8, expert=8)).rank(0).parameters
    assert alone - spread == 2 * 7 * shape.expert
    with pytest.raises(ConfigError, match="3 expert parallel ranks do not divide 8 experts"):
        refuse_impossible(shape, ParallelLayout(data=3, expert=3))


def test_eager_pytorch_keeps_more_than_fused_kernels() -> None:
    layout = ParallelLayout(seq=4096)
    fused, eager = (
        sum(kept_of_layer(LLAMA_70B, layout, 0, practice).values()) for practice in (FUSED, EAGER)
    )
    assert 1.3 < eager / fused < 1.6


def test_gradients_that_are_set_to_none_are_not_there_at_the_loss() -> None:
    small = replace(LLAMA_70B, layers=2)
    once = Training("", small, ParallelLayout(seq=8192, micro_batches=1), MIXED, EAGER).worst()
    assert once.moment == "loss"
    assert "gradients" not in [each.name for each in once.parts]
    summed = Training("", small, ParallelLayout(seq=8192, micro_batches=2), MIXED, EAGER).worst()
    assert summed.allocated - once.allocated == 2 * small.parameters


def test_arithmetic_says_what_was_multiplied() -> None:
    (weights, *_) = Training("", GPT3, ParallelLayout(tensor=8, data=4, zero=3)).rank(0).parts
    count = Training("", GPT3, ParallelLayout(tensor=8)).rank(0).parameters
    assert weights.arithmetic == f"{count:,} x 2 bytes / 4"


@pytest.mark.parametrize("billions", [1, 7, 13, 70, 100, 405, 1000])
def test_a_usual_shape_has_the_parameters_that_were_asked_for(billions: int) -> None:
    shape = shape_for(billions * 10**9)
    assert shape.parameters == pytest.approx(billions * 1e9, rel=0.01)
    assert 1.8 < shape.inner / shape.width < 5
    assert shape.heads % 8 == 0


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (ParallelLayout(tensor=3), "3 tensor parallel ranks do not divide 64 heads"),
        (ParallelLayout(pipeline=81), "81 pipeline stages are more than 80 layers"),
        (ParallelLayout(data=2, expert=2), "expert parallelism is for models with experts"),
    ],
)
def test_what_cannot_be_divided_is_refused(layout: ParallelLayout, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Training("", LLAMA_70B, layout).worst()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"tensor": 0}, "tensor 0 is not possible"),
        ({"zero": 4}, "ZeRO has stages 0 to 3, not 4"),
        ({"recompute": "some"}, "recompute is one of none, selective, ops, full"),
        ({"chunks": 2}, "chunks need a pipeline with more than one stage"),
    ],
)
def test_a_layout_that_is_none_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ParallelLayout(**wrong)
