"""Tensors of a configuration, compared with the parameters of real models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import CONFIGURATIONS
from allocsim.fitting.formulas import (
    FAMILIES,
    KNOWN_TYPES,
    ModelSizes,
    bytes_a_token,
    parameters_of,
    shapes_of,
    sizes_of,
)

DATA = Path(__file__).parents[2] / "traces" / "fit"
CONFIGS: dict[str, Any] = json.loads((DATA / "configs.json").read_text())
ROWS = [json.loads(line) for line in (DATA / "truth.jsonl").read_text().splitlines()]
COUNTED = sorted({(row["model"], row["parameters"]) for row in ROWS if row["model"] in CONFIGS})


@pytest.mark.parametrize(("model", "parameters"), COUNTED)
def test_the_parameters_are_those_that_real_transformers_counted(
    model: str, parameters: int
) -> None:
    assert parameters_of(shapes_of(sizes_of(CONFIGS[model]))) == parameters


@pytest.mark.parametrize(
    ("preset", "published"),
    [
        ("gpt2-xl", 1_557_611_200),
        ("Llama-2-13B", 13_015_864_320),
        ("Llama-3.1-405B", 405_853_388_800),
        ("Qwen2.5-14B", 14_770_033_664),
        ("Mistral-7B-v0.1", 7_241_732_096),
        ("Mixtral-8x7B", 46_702_792_704),
        ("Phi-3-mini", 3_821_079_552),
        ("Gemma-2-9B", 9_241_705_984),
        ("Gemma-2-27B", 27_227_128_320),
    ],
)
def test_the_parameters_are_those_that_the_publishers_print(preset: str, published: int) -> None:
    assert parameters_of(shapes_of(sizes_of(CONFIGURATIONS[preset]))) == published


def test_a_window_belongs_to_all_layers_or_to_every_second_of_gemma_2() -> None:
    def seen(preset: str) -> tuple[int, int]:
        sizes: ModelSizes = sizes_of(CONFIGURATIONS[preset])
        return sizes.window, sizes.windowed

    assert seen("Mistral-7B-v0.1") == (4096, 32)
    assert seen("Gemma-2-9B") == (4096, 21)
    assert seen("Qwen2.5-7B") == (0, 0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "mamba"}, "has no formula"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"intermediate_size": None}, "has no intermediate_size"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"vocab_size": 1 << 40}, "vocab_size is"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"num_hidden_layers": 5000}, "5,000 layers"),
    ],
)
def test_a_configuration_that_no_model_has_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sizes_of({**CONFIGURATIONS["Llama-3-8B"], **changed})


def test_every_type_has_a_function_that_yields_its_tensors() -> None:
    assert set(KNOWN_TYPES) == set(FAMILIES)


@pytest.mark.parametrize(
    ("preset", "window", "windowed"),
    [
        ("Gemma-3-27B", 1024, 52),
        ("gpt-oss-20b", 128, 12),
        ("Olmo-3-7B", 4096, 24),
        ("Llama-4-Scout-17B-16E", 8192, 36),
        ("Qwen3-8B", 0, 0),
        ("Command-R7B", 4096, 24),
    ],
)
def test_a_window_belongs_to_the_layers_of_its_pattern(
    preset: str, window: int, windowed: int
) -> None:
    sizes = sizes_of(CONFIGURATIONS[preset])
    assert (sizes.window, sizes.windowed) == (window, windowed)
    kinds = ["sliding_attention"] * 3 + ["full_attention"] * (sizes.layers - 3)
    listed = sizes_of({**CONFIGURATIONS[preset], "layer_types": kinds})
    assert listed.windowed == (3 if window else 0)


def test_latent_attention_keeps_one_compressed_row_per_token() -> None:
    sizes = sizes_of(CONFIGURATIONS["DeepSeek-V3"])
    assert bytes_a_token(sizes, "bf16") == 61 * (512 + 64) * 2
    assert sizes.grown == (128 * 192, 128 * 128)


def test_an_indexer_keeps_its_own_keys() -> None:
    """A server keeps them in 8 bits, with a scale of 32 bits for each token."""
    sizes = sizes_of(CONFIGURATIONS["DeepSeek-V3.2"])
    assert bytes_a_token(sizes, "bf16") == 61 * ((512 + 64) * 2 + 132)
    assert sizes.grown == (128 * 192 + 128, 128 * 128)


@pytest.mark.parametrize(
    ("preset", "parameters", "keeping"),
    [
        ("Qwen3.5-35B-A3B", 34_660_610_688, 10),
        ("Qwen3.5-27B", 26_895_998_464, 16),
        ("Gemma-3n-E2B", 4_435_182_688, 20),
        ("Gemma-3n-E4B", 6_835_235_568, 20),
        ("Gemma-4-E2B", 4_628_569_344, 15),
        ("Gemma-4-E4B", 7_463_013_376, 24),
        ("Gemma-4-12B", 11_907_350_272, 48),
        ("Gemma-4-26B-A4B", 25_233_141_760, 30),
        ("Gemma-4-31B", 30_697_345_280, 60),
        ("Laguna-S-2.1", 117_561_977_600, 48),
        ("Nemotron-H-8B", 8_100_852_736, 4),
        ("Nemotron-Nano-9B-v2", 8_888_227_328, 4),
        ("Nemotron-3-Nano-4B", 3_973_556_832, 4),
        ("Nemotron-3-Nano-30B-A3B", 31_577_937_344 + 23 * 128, 6),
        ("Nemotron-3-Super-120B-A12B", 120_668_687_360 + 40 * 512, 8),
    ],
)
def test_layers_that_differ_have_the_parameters_that_real_transformers_counted(
    preset: str, parameters: int, keeping: int
) -> None:
    """Counted on a meta device with transformers 5.17, without the encoder of images.

    The corrections of an expert's score, which are buffers there, are in the files.

    keeping: number of layers whose keys and values transformers caches for each token.
    """
    sizes = sizes_of(CONFIGURATIONS[preset])
    assert parameters_of(shapes_of(sizes)) == parameters
    assert sizes.keeping == keeping


@pytest.mark.parametrize(
    ("preset", "cached"),
    [
        ("Gemma-4-E2B", [(3, 0, (512, 512)), (12, 512, (256, 256))]),
        ("Gemma-4-31B", [(10, 0, (2048, 2048)), (50, 1024, (4096, 4096))]),
        ("Laguna-S-2.1", [(12, 0, (1024, 1024)), (36, 512, (1024, 1024))]),
        ("Qwen3-8B", [(36, 0, (1024, 1024))]),
        ("Mistral-7B-v0.1", [(32, 4096, (1024, 1024))]),
    ],
)
def test_layers_are_cached_by_their_window_and_heads(preset: str, cached: list[Any]) -> None:
    """Sizes of the specifications that the layers of vLLM 0.33.0 return."""
    found = sizes_of(CONFIGURATIONS[preset]).cached
    assert [(each.count, each.window, each.kept) for each in found] == cached


@pytest.mark.parametrize(
    ("preset", "kind", "text"),
    [
        ("Gemma-4-12B", "gemma4_unified", "gemma4_unified_text"),
        ("Gemma-4-31B", "gemma4", "gemma4_text"),
        ("Qwen3.5-27B", "qwen3_5", "qwen3_5_text"),
        ("Qwen3-VL-8B", "qwen3_vl", "qwen3_vl_text"),
        ("Devstral-Small-2-24B", "mistral3", "ministral3"),
    ],
)
def test_a_configuration_with_an_encoder_has_the_sizes_of_its_text_part(
    preset: str, kind: str, text: str
) -> None:
    plain = CONFIGURATIONS[preset]
    nested = {"model_type": kind, "text_config": {**plain, "model_type": text}}
    assert sizes_of(nested) == sizes_of(plain)


def test_a_model_of_linear_attention_alone_is_refused() -> None:
    kinds = ["linear_attention"] * 64
    with pytest.raises(ConfigError, match="layer_types has no full_attention"):
        sizes_of({**CONFIGURATIONS["Qwen3.5-27B"], "layer_types": kinds})


def test_experts_are_in_the_layers_that_the_configuration_gives() -> None:
    dense = sizes_of(CONFIGURATIONS["DeepSeek-V3"]).dense
    assert dense == {0, 1, 2}
    assert sizes_of(CONFIGURATIONS["Llama-4-Maverick-17B-128E"]).dense == set(range(0, 48, 2))
    mixed = {**CONFIGURATIONS["Qwen3-30B-A3B"], "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    assert sizes_of(mixed).dense == {*range(0, 48, 2), 1}
