"""Which keys of a configuration are sizes, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from allocsim.errors import ConfigError
from allocsim.laws import family_of

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
    ],
)
def test_what_no_law_is_for(changed: dict[str, Any], sentence: str) -> None:
    family = family_of(LLAMA)
    assert family is not None
    with pytest.raises(ConfigError) as caught:
        family.sizes_of({**LLAMA, **changed})
    assert str(caught.value).startswith(sentence)


def test_an_architecture_without_laws_has_no_family() -> None:
    assert family_of({"model_type": "mamba"}) is None
    assert family_of({}) is None
