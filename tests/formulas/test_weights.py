"""Bytes of every format, compared with published figures and real tensors."""

from __future__ import annotations

from typing import Any

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import CONFIGURATIONS
from allocsim.fitting.formulas import (
    BLOCKS,
    FORMATS,
    Weights,
    bytes_in,
    format_in,
    parameters_of,
    shapes_of,
    sizes_of,
    unconverted_in,
    weights_of,
)

PUBLISHED = {
    **{"IQ1_S": 2.0042, "IQ1_M": 2.1460, "IQ2_XXS": 2.3824, "IQ2_XS": 2.5882, "IQ2_S": 2.7403},
    **{"IQ2_M": 2.9294, "Q2_K_S": 2.9697, "Q2_K": 3.1593, "IQ3_XS": 3.4977, "IQ3_S": 3.6606},
    **{"IQ3_M": 3.7628, "Q3_K_S": 3.6429, "Q3_K_M": 3.9960, "Q3_K_L": 4.2979, "IQ4_XS": 4.4597},
    **{"IQ4_NL": 4.6818, "Q4_K_S": 4.6672, "Q4_K_M": 4.8944, "Q5_K_S": 5.5704, "Q5_K_M": 5.7036},
    **{"Q6_K": 6.5633, "Q8_0": 8.5008, "F16": 16.0005},
}
"""Bits per weight of Llama 3.1 8B, from llama.cpp's tools/quantize/README.md."""


def weights(preset: str, name: str, *, has_imatrix: bool = False) -> Weights:
    sizes = sizes_of(CONFIGURATIONS[preset])
    return weights_of(shapes_of(sizes), name, sizes, has_imatrix=has_imatrix)


@pytest.mark.parametrize(("name", "bits"), PUBLISHED.items())
def test_gguf_files_have_the_bits_a_weight_that_llama_cpp_prints(name: str, bits: float) -> None:
    assert round(weights("Llama-3.1-8B", name).bits, 4) == bits


def test_an_importance_matrix_moves_the_tensors_that_the_recipe_says() -> None:
    assert round(weights("Llama-3.1-8B", "IQ3_XXS", has_imatrix=True).bits, 4) == 3.2548
    assert weights("Llama-3.1-8B", "IQ3_XXS").bits > 3.3


def test_every_format_holds_every_parameter() -> None:
    sizes = sizes_of(CONFIGURATIONS["Qwen2.5-0.5B"])
    for name in FORMATS:
        found = weights("Qwen2.5-0.5B", name)
        assert found.parameters == parameters_of(shapes_of(sizes))
        assert sum(found.parts.values()) == found.size
        assert 1.5 < found.bits <= 32


def test_plain_formats_are_parameters_times_bytes() -> None:
    parameters = weights("Llama-2-13B", "fp32").parameters
    assert weights("Llama-2-13B", "fp32").size == 4 * parameters
    assert weights("Llama-2-13B", "bf16").size == 2 * parameters
    assert round(weights("Llama-2-13B", "fp32").size / 1e9) == 52


def test_llm_int8_keeps_head_and_embeddings_and_a_scale_a_row() -> None:
    found = weights("Qwen2.5-7B", "int8").parts
    assert found["embeddings"] == found["head"] == 2 * 152064 * 3584
    rows = 28 * (3584 + 512 + 512 + 3584 + 18944 + 18944 + 3584)
    assert found["scales and zero points"] == 4 * rows
    assert found["quantised weights"] == 28 * (3584 * (3584 * 2 + 1024 + 3 * 18944))


def test_nf4_has_half_a_bit_of_scales_and_an_eighth_when_they_are_quantised_too() -> None:
    """See QLoRA, section 3: 32/64 = 0.5 bits, and 8/64 + 32/(64 x 256) = 0.127."""
    for name, expected in (("nf4", 0.5), ("nf4-double", 0.127)):
        parts = weights("Llama-2-7B", name).parts
        weights_at_4_bits = 2 * parts["quantised weights"]
        bits = 8 * parts["scales and zero points"] / weights_at_4_bits
        assert bits == pytest.approx(expected, abs=0.0005)


def test_gptq_and_awq_keep_scales_and_zeros_by_group() -> None:
    awq, gptq = weights("Llama-2-7B", "awq-int4"), weights("Llama-2-7B", "gptq-int4")
    quantised = 2 * awq.parts["quantised weights"]
    assert 8 * awq.parts["scales and zero points"] / quantised == (16 + 4) / 128
    indices = 32 * 4 * (6 * 4096 + 11008)
    assert gptq.size - awq.size == indices
    finer = weights("Llama-2-7B", "gptq-int4-g32")
    assert (
        finer.parts["scales and zero points"] - indices == 4 * awq.parts["scales and zero points"]
    )


def test_a_row_that_no_block_divides_takes_another_type() -> None:
    """Qwen2.5-0.5B is 896 wide, which is not a multiple of 256."""
    found = weights("Qwen2.5-0.5B", "Q4_K_M")
    by_role = {each.shape.role: each for each in found.tensors}
    assert 8 * by_role["attn_q"].size / by_role["attn_q"].shape.elements == BLOCKS["Q5_0"].bits
    assert BLOCKS["Q5_K"].bits == 5.5
    assert BLOCKS["Q4_K"].bits == 4.5
    with pytest.raises(ConfigError, match="not a multiple of"):
        bytes_in("Q4_K", 896)


def test_mixtral_gives_its_attention_more_bits() -> None:
    found = weights("Mixtral-8x7B", "Q4_K_M")
    kinds = {each.shape.role: 8 * each.size / each.shape.elements for each in found.tensors}
    assert kinds["attn_v"] == kinds["attn_k"] == BLOCKS["Q8_0"].bits
    assert kinds["router"] == 32
    assert kinds["attn_output"] == BLOCKS["Q5_K"].bits


def test_a_format_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a known format"):
        weights("gpt2", "int3")
    with pytest.raises(ConfigError, match="not a known format"):
        weights("gpt2", "gptq-int4-g0")


def grouped(kind: str, bits: int, method: str = "compressed-tensors", **more: object) -> Any:
    weights = {"num_bits": bits, "type": kind, **more}
    return {"quant_method": method, "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq-int4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "gptq-int8-g32"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq-int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        (
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "bnb_4bit_use_double_quant": True,
            },
            "nf4-double",
        ),
        (grouped("int", 4, group_size=128, strategy="group"), "gptq-int4"),
        (grouped("int", 4, group_size=32, strategy="group"), "gptq-int4-g32"),
        (grouped("int", 8, group_size=None, strategy="channel"), "int8"),
        (grouped("float", 8, strategy="tensor"), "fp8"),
        (grouped("float", 8, group_size=None, strategy="channel"), "fp8-rows"),
        (grouped("float", 8, strategy="block", block_structure=[128, 128]), "fp8-blocks"),
        (grouped("float", 4, group_size=16, strategy="tensor_group"), "nvfp4"),
        (grouped("float", 4, "modelopt", group_size=16), "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "gptq-int4"),
        ({"quant_method": "auto-round", "bits": 8, "group_size": 64}, "gptq-int8-g64"),
    ],
)
def test_a_configuration_says_how_its_weights_are_quantised(
    said: dict[str, object], name: str
) -> None:
    assert format_in({"quantization_config": said}) == name
    assert weights("gpt2", name).size > 0


def test_a_configuration_without_a_word_or_with_another_method() -> None:
    assert format_in({}) is None
    with pytest.raises(ConfigError, match="use --weights"):
        format_in({"quantization_config": {"quant_method": "hqq", "bits": 3}})


@pytest.mark.parametrize(
    "said",
    [
        grouped("int", 3, group_size=128),
        grouped("int", 4, group_size=None, strategy="channel"),
        grouped("float", 8, strategy="block", block_structure=[64, 64]),
        grouped("int", 4, group_size=128)
        | {"config_groups": {"a": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}},
                             "b": {"weights": {"num_bits": 8, "type": "float"}}}},
        {"quant_method": "compressed-tensors", "config_groups": [1]},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "auto-round", "bits": 4, "group_size": 16, "data_type": "nv_fp"},
    ],
)  # fmt: skip
def test_groups_without_a_formula_are_refused(said: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="use --weights"):
        format_in({"quantization_config": said})


@pytest.mark.parametrize(
    ("ignore", "count"),
    [
        (["lm_head"], 0),
        (["re:.*lm_head", "re:.*self_attn.*"], 4 * 32),
        (["model.layers.0*"], 7),
        (["model.language_model.layers.1.self_attn.q_proj"], 1),
        (["model.layers.31"], 7),
        (5, 0),
    ],
)
def test_ignored_modules_stay_in_16_bits(ignore: object, count: int) -> None:
    sizes = sizes_of(CONFIGURATIONS["Llama-3.1-8B"])
    for key in ("ignore", "exclude_modules"):
        kept = unconverted_in({"quantization_config": {key: ignore}})
        assert sum(map(kept, shapes_of(sizes))) == count


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="a pattern of ignore"):
        unconverted_in({"quantization_config": {"ignore": ["re:("]}})
