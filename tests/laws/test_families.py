"""Configuration keys that are sizes, and values that are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting.laws import CLASSIFIERS, family_of

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32,
}  # fmt: skip


def test_what_is_left_out_is_what_transformers_takes() -> None:
    family = family_of(LLAMA)
    assert family is not None
    sizes = family.sizes_of(LLAMA)
    assert (sizes["kv_heads"], sizes["head_dim"], sizes["layers"]) == (32, 128, 32)
    assert family.name_of(LLAMA) == "llama_untied"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"attention_bias": True}, "attention_bias is True: laws are for False or None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu': laws are for 'silu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}: laws are for"),
        (
            {"num_attention_heads": 30},
            "4096 wide with 30 heads, 30 of keys and values: they do not",
        ),
        ({"num_key_value_heads": 5}, "4096 wide with 32 heads, 5 of keys and values: they do not"),
        ({"vocab_size": "many"}, "vocab_size is 'many'; expected a whole number, 1 or more"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1; expected a whole number"),
        ({"hidden_size": True}, "hidden_size is True; expected a whole number"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope_type is 'dynamic': laws need constant"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type is 'longrope': laws need"),
        ({"rope_parameters": "llama3"}, "rope_parameters are 'llama3'; expected its keys"),
        ({"partial_rotary_factor": 0.75}, "partial_rotary_factor is 0.75: laws are for 1.0"),
    ],
)
def test_what_no_law_is_for(changed: dict[str, Any], sentence: str) -> None:
    family = family_of(LLAMA)
    assert family is not None
    with pytest.raises(ConfigError) as caught:
        family.sizes_of({**LLAMA, **changed})
    assert str(caught.value).startswith(sentence)


def test_a_window_that_is_left_out_is_the_familys() -> None:
    windows = {"llama": None, "mistral": 4096, "gemma2": 4096, "phi3": 0, "mixtral": 0}
    for model_type, window in windows.items():
        config = {**LLAMA, "model_type": model_type, "num_key_value_heads": 8}
        config |= {"head_dim": 128, "num_local_experts": 8, "num_experts_per_tok": 2}
        family = family_of(config)
        assert family is not None
        assert family.sizes_of(config).get("window") == window
        if window is not None:
            assert family.sizes_of({**config, "sliding_window": 77})["window"] == 77
            assert family.sizes_of({**config, "sliding_window": None})["window"] == 0


def test_a_head_that_is_left_out_is_the_familys() -> None:
    gemma = family_of({"model_type": "gemma2"})
    assert gemma is not None
    config = {**LLAMA, "model_type": "gemma2", "num_key_value_heads": 8}
    assert gemma.sizes_of(config)["head_dim"] == 256
    assert gemma.sizes_of({**config, "head_dim": 64})["head_dim"] == 64


def test_a_set_of_adapters_has_one_name_in_any_order() -> None:
    llama, gpt2 = family_of(LLAMA), family_of({"model_type": "gpt2"})
    assert llama is not None and gpt2 is not None
    assert llama.adapted(("v_proj", "q_proj")) == llama.adapted(["q_proj", "v_proj", "q_proj"])
    assert llama.adapted(("v_proj", "q_proj")) == "q_proj-v_proj"
    assert llama.adapted(llama.linear[::-1]) == llama.adapted(()) == ""
    assert gpt2.adapted({"wte", "c_attn"}) == "c_attn-wte"


def test_vision_transformers_of_torchvision_have_sizes_and_no_embedding() -> None:
    for config in CLASSIFIERS.values():
        family = family_of(config)
        assert family is not None
        assert family.name_of(config) == "torchvision-vit"
        assert family.sizes_of(config)["head_dim"] == 64


def test_the_kinds_that_a_vision_transformer_tells_apart_are_listed_or_counted() -> None:
    config: dict[str, Any] = {
        "model_type": "vit", "hidden_size": 768, "intermediate_size": 3072, "patch_size": 16,
        "num_hidden_layers": 12, "num_attention_heads": 12,
    }  # fmt: skip
    vit = family_of(config)
    assert vit is not None
    assert vit.name_of(config) == "vit"
    assert vit.sizes_of(config)["vocabulary"] == 2
    assert vit.sizes_of({**config, "num_labels": 10})["vocabulary"] == 10
    assert vit.sizes_of({**config, "id2label": {"0": "a", "1": "b", "2": "c"}})["vocabulary"] == 3
    with pytest.raises(ConfigError, match="image_size is 384: laws are for 224"):
        vit.sizes_of({**config, "image_size": 384})


def test_an_architecture_without_laws_has_no_family() -> None:
    assert family_of({"model_type": "mamba"}) is None
    assert family_of({}) is None
