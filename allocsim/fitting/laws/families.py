"""Model families with laws (formulas for requests), and the keys of their configurations.

`families.json` lists the families, and has the default of `Family.keys` under "keys".  Some
configuration keys give dimensions of a model.  Other keys that change the requests must have a
supported value.
"""

# Sources: the configuration classes of transformers with their defaults, and torchvision's vision
# transformers.

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Family:
    """Model family with formulas for its requests (laws), and how to read its configuration.

    model_type: model_type in the configuration.
    keys: dictionary from names in `SIZES`, such as "hidden", to configuration keys.
    is_tied: default of tie_word_embeddings, None for a model without an embedding.
    usual: dictionary from each further key that changes the requests to its supported values, the
        default first.
    linear: names of a layer's linear modules, in order.
    head: ending of the name of the model class.
    window: default of sliding_window, None for a family whose laws have no windows.
    sees: True if the model classifies images. The size `vocabulary` is then the number of classes,
        which the configuration gives as a list or a number (default: 2).
    head_dim: default of head_dim; None if it is the width divided by the number of heads.
    is_eager: True if transformers supports only eager attention.
    period: number of consecutive layers of different kinds after which the kinds repeat; the number
        of a model's layers must be a multiple of it.
    rotated: fraction of a head's elements that rotary position embedding changes.
    norms_heads: True if queries and keys are normalized head by head.
    """

    model_type: str
    keys: Mapping[str, str]
    is_tied: bool | None
    usual: Mapping[str, tuple[Any, ...]]
    linear: tuple[str, ...]
    head: str = "CausalLM"
    window: int | None = None
    sees: bool = False
    has_output_bias: bool = False
    head_dim: int | None = None
    is_eager: bool = False
    period: int = 1
    rotated: float = 1.0
    norms_heads: bool = False

    def sizes_of(self, config: Mapping[str, Any]) -> dict[str, int]:
        """Read a model's dimensions, keyed by names such as "layers", from its configuration.

        Raises ConfigError if a value is not supported by the laws.
        """
        for key, values in self.usual.items():
            value = config.get(key, values[0])
            if value not in values:
                expected = " or ".join(repr(each) for each in values)
                raise ConfigError(f"{key} is {value!r}: laws are for {expected}")
        _refuse_variable_rope(config, self.rotated)
        found = {name: config[key] for name, key in self.keys.items() if config.get(key)}
        if "heads" in found and "hidden" in found:
            found.setdefault("kv_heads", found["heads"])
            found.setdefault("head_dim", self.head_dim or found["hidden"] // max(found["heads"], 1))
        if "hidden" in found and self.model_type == "gpt2":
            found.setdefault("intermediate", 4 * found["hidden"])
        if self.sees and "vocabulary" in self.keys:
            found.setdefault("vocabulary", len(config.get("id2label") or _DEFAULT_CLASSES))
        if self.window is not None:
            found["window"] = config.get("sliding_window", self.window) or 0
        if self.has_output_bias:
            found["output_bias"] = 1
        if self.norms_heads:
            found["head_norms"] = 1
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

    def adapted(self, targets: Collection[str]) -> str:
        """Return the names of the modules with LoRA adapters, joined by "-".

        The text follows "lora-" in a program's name. It is "" if all linear modules have adapters.

        targets: names of the modules with adapters; empty for all linear modules.
        """
        named = set(targets) or set(self.linear)
        known = [name for name in self.linear if name in named]
        return "" if named == set(self.linear) else "-".join(known + sorted(named - set(known)))

    def name_of(self, config: Mapping[str, Any]) -> str:
        """Return the name of the family's laws for a model, such as "llama_tied".

        The ending "_tied" or "_untied" says if the output layer shares the embedding's weights; a
        model without an embedding has no ending.
        """
        if self.is_tied is None:
            return self.model_type
        is_tied = config.get("tie_word_embeddings", self.is_tied)
        return f"{self.model_type}_{'tied' if is_tied else 'untied'}"


_DEFAULT_CLASSES = ("LABEL_0", "LABEL_1")
"""Names of the classes of an image classifier whose configuration has no id2label."""

_ROPES = (None, "default", "linear", "llama3")
"""Values of rope_type that laws support, because frequencies do not depend on the sequence."""


def _refuse_variable_rope(config: Mapping[str, Any], usual: float) -> None:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ConfigError(f"rope_parameters are {rope!r:.80}; expected its keys and values")
    kind = rope.get("rope_type", rope.get("type"))
    if kind not in _ROPES:
        raise ConfigError(f"rope_type is {kind!r}: laws need constant frequencies")
    rotated = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", usual))
    if rotated != usual:
        raise ConfigError(f"partial_rotary_factor is {rotated!r}: laws are for {usual}")


def _family(row: dict[str, Any]) -> Family:
    usual = {key: tuple(values) for key, values in row["usual"].items()}
    linear = tuple(row["linear"])
    return Family(**({"keys": _TABLES["keys"]} | row | {"linear": linear, "usual": usual}))


_TABLES = json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8"))

FAMILIES: Mapping[str, Family] = {row["model_type"]: _family(row) for row in _TABLES["families"]}
"""Dictionary from model_type in a configuration to the model family."""

CLASSIFIERS: Mapping[str, Mapping[str, Any]] = _TABLES["classifiers"]
"""Dictionary from functions of torchvision.models to configurations, with transformers' keys."""


def family_of(config: Mapping[str, Any]) -> Family | None:
    """Return the model family of a configuration, or None if its model_type has no laws."""
    return FAMILIES.get(str(config.get("model_type")))
