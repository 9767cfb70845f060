"""Models whose programs have laws: which keys of a configuration are sizes, and which are fixed.

Rule: a key that changes what is requested is a size, or has one value here; another value is
refused by name.  Sources: the configuration classes of transformers, their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allocsim.errors import ConfigError

__all__ = ["FAMILIES", "Family", "family_of"]


@dataclass(frozen=True, slots=True)
class Family:
    """model_type: of the configuration.

    keys: by size, the configuration's key.  is_tied: the default of tie_word_embeddings.
    usual: keys that change the requests, and the values for which the laws hold, the default first.
    """

    model_type: str
    keys: Mapping[str, str]
    is_tied: bool
    usual: Mapping[str, tuple[Any, ...]]

    def sizes_of(self, config: Mapping[str, Any]) -> dict[str, int]:
        """The sizes, `layers` among them.

        Raises ConfigError for one that is missing or no number, heads that do not divide, and a
        key whose value no law is for.
        """
        for key, values in self.usual.items():
            value = config.get(key, values[0])
            if value not in values:
                expected = " or ".join(repr(each) for each in values)
                raise ConfigError(f"{key} is {value!r}: laws are for {expected}")
        found = {name: config[key] for name, key in self.keys.items() if config.get(key)}
        if "heads" in found and "hidden" in found:
            found.setdefault("kv_heads", found["heads"])
            found.setdefault("head_dim", found["hidden"] // max(found["heads"], 1))
        if "hidden" in found and self.model_type == "gpt2":
            found.setdefault("intermediate", 4 * found["hidden"])
        for name, key in self.keys.items():
            value = found.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{key} is {value!r}; expected a whole number, 1 or more")
        if found["heads"] % found["kv_heads"] or found["hidden"] % found["heads"]:
            raise ConfigError(
                f"{found['hidden']} wide with {found['heads']} heads, {found['kv_heads']} of keys "
                "and values: they do not divide"
            )
        return found

    def is_tied_in(self, config: Mapping[str, Any]) -> bool:
        """Whether the output layer is the embedding."""
        return bool(config.get("tie_word_embeddings", self.is_tied))


_LIKE_LLAMA = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocabulary": "vocab_size",
}
_PLAIN = {"hidden_act": ("silu",), "attention_dropout": (0.0, 0), "quantization_config": (None,)}
_WITHOUT_BIAS = {"attention_bias": (False, None), "mlp_bias": (False, None)}

FAMILIES = {
    "llama": Family("llama", _LIKE_LLAMA, is_tied=False, usual={**_PLAIN, **_WITHOUT_BIAS}),
    "mistral": Family("mistral", _LIKE_LLAMA, is_tied=False, usual={
        **_PLAIN, "sliding_window": (None,),
    }),
    "qwen2": Family("qwen2", _LIKE_LLAMA, is_tied=False, usual={
        **_PLAIN, "use_sliding_window": (False, None),
    }),
    "gpt2": Family(
        "gpt2",
        {
            "hidden": "n_embd",
            "intermediate": "n_inner",
            "layers": "n_layer",
            "heads": "n_head",
            "vocabulary": "vocab_size",
            "positions": "n_positions",
        },
        is_tied=True,
        usual={
            "activation_function": ("gelu_new",),
            "resid_pdrop": (0.1,),
            "embd_pdrop": (0.1,),
            "attn_pdrop": (0.1,),
            "add_cross_attention": (False, None),
            "quantization_config": (None,),
        },
    ),
}  # fmt: skip
"""By model_type."""


def family_of(config: Mapping[str, Any]) -> Family | None:
    """The family of a configuration; None for one that has no laws."""
    return FAMILIES.get(str(config.get("model_type")))
