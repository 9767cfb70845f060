"""Conversion of a model's configuration into the sizes that the training formulas need.

Rule: values that a configuration omits are the defaults of transformers for its model_type. A model
    that is not a decoder of equal layers is refused, because the formulas do not describe it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.training import Latent, Shape
from allocsim.fitting.model import Configured, Model

__all__ = ["shape_of"]

_DECODERS = frozenset(
    (
        *("deepseek_v2", "deepseek_v3", "gemma2", "gpt2", "llama", "mistral", "mixtral"),
        *("phi3", "qwen2"),
    )
)


def shape_of(model: Model) -> Shape:
    """Return the sizes of `model` for the training formulas.

    Raises ConfigError for a model that the formulas do not describe.
    """
    kind = model.config["model_type"] if isinstance(model, Configured) else "function"
    if not isinstance(model, Configured) or kind not in _DECODERS:
        raise ConfigError(
            f"{model.name} ({kind}) is not described by the formulas of parallel training; "
            f"expected one of {', '.join(sorted(_DECODERS))}, or --parameters 7B"
        )
    width, layers, heads = (_needed(model, each) for each in ("width", "layers", "heads"))
    head = model.size("head") or width // heads
    is_gpt2 = kind == "gpt2"
    tied = model.config.get("tie_word_embeddings", kind in ("gpt2", "gemma2"))
    return Shape(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=model.size("kv_heads") or heads,
        vocabulary=_needed(model, "vocabulary"),
        is_tied=bool(tied),
        is_gated=not is_gpt2,
        positions=_needed(model, "positions") if is_gpt2 else 0,
        norms=4 if kind == "gemma2" else 2,
        has_biases=is_gpt2,
        query_bias=kind == "qwen2",
        dropout=is_gpt2 and bool(model.config.get("resid_pdrop", 0.1)),
        **_inside(model, model.config, head, 4 * width),
    )


def _needed(model: Configured, what: str) -> int:
    value = model.size(what)
    if value is None:
        raise ConfigError(f"{model.name}: its configuration lacks the {what}")
    return value


def _inside(
    model: Configured, config: Mapping[str, Any], head: int, usual_inner: int
) -> dict[str, Any]:
    """Return the sizes of attention heads and MLP, with experts and latent attention.

    usual_inner: width of the MLP if the configuration omits it.
    """
    inner = model.size("inner") or usual_inner
    found: dict[str, Any] = {"head": head, "inner": inner}
    if config["model_type"] == "mixtral":
        found |= {"experts": model.size("experts") or 8, "chosen": model.size("chosen") or 2}
        return found | {"expert_inner": inner}
    if config["model_type"].startswith("deepseek"):
        try:
            each = int(config["moe_intermediate_size"])
            found |= {
                "head": int(config["qk_nope_head_dim"]),
                "experts": int(config["n_routed_experts"]),
                "chosen": int(config["num_experts_per_tok"]),
                "expert_inner": each,
                "shared_inner": each * int(config.get("n_shared_experts") or 0),
                "dense_layers": int(config.get("first_k_dense_replace", 0)),
                "latent": Latent(
                    query=int(config["q_lora_rank"]),
                    key_value=int(config["kv_lora_rank"]),
                    turning=int(config["qk_rope_head_dim"]),
                    value=int(config["v_head_dim"]),
                ),
            }
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{model.name}: its configuration lacks a size of experts or latent attention"
            ) from None
    return found
