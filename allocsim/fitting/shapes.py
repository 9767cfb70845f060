"""Conversion of a model's configuration into the shape that the formulas of training take.

Rule: a model without a list of its tensors (`formulas/shapes.py`) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.formulas import KNOWN_TYPES, Sizes, shapes_of, sizes_of
from allocsim.fitting.formulas.training import Latent, Shape
from allocsim.fitting.model import Configured, Model

__all__ = ["shape_of"]

_WITH_BIASES = ("gpt2", "phi", "starcoder2")
"""Types without a gate, where every matrix and norm has a bias."""
_NORMS = {"gemma2": 4, "gemma3_text": 4, "glm4": 4, "phi": 1}
"""Norms of a layer's width, by type; 2 in other types."""


def shape_of(model: Model) -> Shape:
    """Return the shape of `model`.

    Raises ConfigError for a model that the formulas do not describe.
    """
    kind = model.config["model_type"] if isinstance(model, Configured) else "function"
    if not isinstance(model, Configured) or kind not in KNOWN_TYPES:
        raise ConfigError(
            f"{model.name} ({kind}) is not described by the formulas of parallel training; "
            f"expected one of {', '.join(KNOWN_TYPES)}, or --parameters 7B"
        )
    try:
        sizes = sizes_of(model.config)
    except ConfigError as error:
        raise ConfigError(f"{model.name}: {error}") from None
    shape = _shape(sizes, model.config)
    last = sizes.layers - 1
    whole = sum(each.elements for each in shapes_of(sizes) if each.layer == last)
    return replace(shape, others=whole - shape.layer(last))


def _shape(sizes: Sizes, config: Mapping[str, Any]) -> Shape:
    """Return the shape without the small tensors that only some types have."""
    latent = sizes.latent
    return Shape(
        layers=sizes.layers,
        width=sizes.width,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head=sizes.head,
        inner=sizes.inner,
        vocabulary=sizes.vocabulary,
        is_tied=sizes.tied,
        is_gated=sizes.family not in _WITH_BIASES,
        positions=sizes.positions,
        norms=_NORMS.get(sizes.family, 2),
        has_biases=sizes.family in _WITH_BIASES,
        query_bias=sizes.attention_bias,
        dropout=sizes.family == "gpt2" and bool(config.get("resid_pdrop", 0.1)),
        experts=sizes.experts,
        chosen=sizes.chosen,
        expert_inner=sizes.expert_inner,
        shared_inner=sizes.shared_inner,
        dense_layers=len(sizes.dense),
        latent=None
        if latent is None
        else Latent(
            query=latent.query,
            key_value=latent.key_value,
            turning=latent.turning,
            value=latent.value,
        ),
    )
