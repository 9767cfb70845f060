"""Formulas compared with the numbers that their papers print."""

from __future__ import annotations

import pytest

from tests.formulas.papers import (
    edge_activations,
    first_stage_activations,
    interleaving_factor,
    layer_activations,
    megatron_bytes,
    zero_states,
)

GB = 1e9
GPT3 = (2048, 1, 12288, 96)
MT_NLG = (2048, 1, 20480, 128)
Sizes = tuple[int, int, int, int]
"""Values of s, b, h and a."""


@pytest.mark.parametrize(("model", "scores"), [(GPT3, 80), (MT_NLG, 64)])
def test_the_attention_term_is_80_of_gpt3_and_64_of_mt_nlg(model: Sizes, scores: int) -> None:
    sbh = model[0] * model[1] * model[2]
    assert layer_activations(*model) == sbh * (34 + scores)
    assert layer_activations(*model, 8) == sbh * (10 + 24 / 8 + scores / 8)
    assert layer_activations(*model, 8, sequence_parallel=True) == sbh / 8 * (34 + scores)


@pytest.mark.parametrize(("model", "saved"), [(GPT3, 0.70), (MT_NLG, 0.65)])
def test_selective_recomputation_saves_70_and_65_percent(model: Sizes, saved: float) -> None:
    whole = layer_activations(*model, 8, sequence_parallel=True)
    left = layer_activations(*model, 8, sequence_parallel=True, recompute="selective")
    assert 1 - left / whole == pytest.approx(saved, abs=0.005)


def test_both_techniques_together_save_about_five_times() -> None:
    for model in (GPT3, MT_NLG):
        before = layer_activations(*model, 8)
        after = layer_activations(*model, 8, sequence_parallel=True, recompute="selective")
        assert 4.9 < before / after < 5.5


def test_flash_attention_keeps_what_selective_recomputation_keeps() -> None:
    flash = layer_activations(*GPT3, 8, sequence_parallel=True, flash=True)
    assert flash == 34 * 2048 * 12288 / 8
    assert flash == layer_activations(*GPT3, 8, sequence_parallel=True, recompute="selective")


def test_full_recomputation_keeps_the_input_of_a_layer() -> None:
    assert layer_activations(*GPT3, 8, recompute="full") == 2 * 2048 * 12288


def test_interleaving_as_in_the_papers_runs() -> None:
    assert interleaving_factor(8, 3) == pytest.approx(1 + 7 / 24)
    assert interleaving_factor(35, 3) == pytest.approx(1.324, abs=0.0005)


def test_the_first_stage_keeps_all_layers_worth_whatever_the_pipeline() -> None:
    layer = layer_activations(*MT_NLG, 8, sequence_parallel=True, recompute="selective")
    assert first_stage_activations(layer, 105) == first_stage_activations(layer, 105, p=35)
    assert first_stage_activations(layer, 105, p=35, m=3) == pytest.approx(
        layer * 105 * (1 + 34 / 105)
    )


def test_the_edges_are_as_the_paper_adds_them_up() -> None:
    """The formula is sbhL/t (p/L + [p=1] 4/L (1 + v/h))."""
    s, b, h, layers, v, t = 2048, 4, 6144, 48, 51200, 8
    whole = s * b * h * layers / t
    assert edge_activations(s, b, h, v, t=t) == pytest.approx(
        whole * (1 / layers + 4 / layers * (1 + v / h))
    )
    assert edge_activations(s, b, h, v, t=t, p=8) == s * b * h * 8 / t


@pytest.mark.parametrize(
    ("billions", "d", "stages"),
    [
        (7.5, 1, (120, 120, 120)),
        (7.5, 4, (52.5, 41.3, 30)),
        (7.5, 16, (35.6, 21.6, 7.5)),
        (7.5, 64, (31.4, 16.6, 1.88)),
        (7.5, 256, (30.4, 15.4, 0.47)),
        (7.5, 1024, (30.1, 15.1, 0.12)),
        (128, 4, (896, 704, 512)),
        (128, 64, (536, 284, 32)),
        (128, 1024, (513, 257, 2)),
        (1000, 16, (4750, 2875, 1000)),
        (1000, 1024, (4011, 2013, 15.6)),
    ],
)
def test_the_table_of_zero(billions: float, d: int, stages: tuple[float, ...]) -> None:
    """Table 1, in GB; 7.5 B parameters on 64 GPUs are in figure 1: 120, 31.4, 16.6, 1.9."""
    for stage, printed in enumerate(stages, 1):
        said = zero_states(billions * 1e9, d, stage) / GB
        assert said == pytest.approx(printed, rel=0.004, abs=0.06)
    assert zero_states(billions * 1e9, d, 0) == 16 * billions * 1e9


def test_gpt2_of_1_5_billion_needs_24_gb_at_least() -> None:
    assert zero_states(1.5e9, 1, 0) == 24 * GB


def test_the_table_of_megatrons_distributed_optimizer() -> None:
    assert megatron_bytes("16bit", "16bit") == 20
    assert megatron_bytes("16bit", "fp32") == 18
    assert megatron_bytes("fp32", "fp32") == 16
    assert megatron_bytes("16bit", "16bit", 8) == 4 + 16 / 8
    assert megatron_bytes("16bit", "fp32", 8) == 6 + 12 / 8
    assert megatron_bytes("fp32", "fp32", 8) == 8 + 8 / 8
