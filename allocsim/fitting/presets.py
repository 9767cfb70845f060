"""Published configurations of common models, by name.

Rule: a configuration holds the values that determine a tensor's shape or a kernel, under the keys
of the model's configuration file. Weights are not needed. `models.json` has one row for each model:
the publisher's repository on the Hugging Face hub, where its config.json was read, the number of
parameters, those of an encoder of images beside them, other names of the same configuration, and
the format of the published weights if that is not 16 bits. For `TORCHVISION`, the source are the
functions of torchvision with those names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

Configuration = Mapping[str, Any]

PRESETS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("models.json").read_text(encoding="utf-8")
)
"""Rows of `models.json`, by name."""

CONFIGURATIONS: dict[str, Configuration] = {name: row["config"] for name, row in PRESETS.items()}
"""Configurations of language models for Hugging Face transformers."""

TORCHVISION = {
    "ViT-B/16": "vit_b_16",
    "ViT-B/32": "vit_b_32",
    "ViT-L/16": "vit_l_16",
    "ResNet-18": "resnet18",
    "ResNet-34": "resnet34",
    "ResNet-50": "resnet50",
    "ResNet-101": "resnet101",
    "ResNet-152": "resnet152",
    "ConvNeXt-Base": "convnext_base",
    "EfficientNet-B0": "efficientnet_b0",
    "Swin-B": "swin_b",
}
"""Function of torchvision.models that builds each image classifier."""

_IGNORED = frozenset(
    (
        *("4bit", "8bit", "awq", "base", "bf16", "block", "bnb", "chat", "dynamic", "fp8", "gguf"),
        *("gptq", "hf", "instruct", "int4", "int8", "it", "meta", "mlx", "mxfp4", "pt"),
        *("quantized", "quantized.w4a16", "quantized.w8a8", "unsloth"),
    )
)
"""Words of a name that do not change the architecture."""
_WORDS = re.compile(r"[\s_:-]+")
_FAMILY = re.compile(r"[a-z]+")
_ALIKE = 0.5
_SUGGESTED = 3


def find_preset(name: str) -> str | None:
    """Return the name of the preset that `name` means, or None if there is none.

    "Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct-AWQ", "qwen2.5:7b" and "Qwen2.5-7B" mean the
    same preset.
    """
    if name in CONFIGURATIONS or name in TORCHVISION:
        return name
    known = _known()
    whole = "".join(c for c in name.lower() if c.isalnum())
    return known.get(_key(name), known.get(whole))


def near_presets(name: str) -> tuple[str, ...]:
    """Return up to three presets with names like `name`, the most similar first.

    They belong to the family that the name begins with, such as "qwen" or "llama".
    """
    key = _key(name)
    families: dict[str, list[str]] = {}
    for other in _known():
        if family := _FAMILY.match(other):
            families.setdefault(family[0], []).append(other)
    started = _FAMILY.match(key)
    near = get_close_matches(started[0], families, n=1, cutoff=0.75) if started else []
    ratios = {other: SequenceMatcher(None, key, other).ratio() for each in near
              for other in families[each]}  # fmt: skip
    best = sorted(ratios, key=lambda other: -ratios[other])
    found = dict.fromkeys(_known()[other] for other in best if ratios[other] >= _ALIKE)
    return tuple(found)[:_SUGGESTED]


def published_format(name: str) -> str | None:
    """Return the format of the weights that `name` means, or None for 16 bits.

    A suffix such as "-AWQ" determines it, else the preset.
    """
    words = set(_words(name.rsplit("/", 1)[-1]))
    unsloth = "nf4-double" if name.lower().startswith("unsloth/") else "nf4"
    for word, quantised in (("awq", "awq-int4"), ("bnb", unsloth)):
        if word in words:
            return quantised
    if "gptq" in words:
        return "gptq-int8" if "int8" in words else "gptq-int4"
    if "fp8" in words:  # Qwen and DeepSeek have a scale for each block of 128 x 128 elements
        return "fp8-blocks" if name.lower().startswith(("qwen/", "deepseek-ai/")) else "fp8"
    preset = find_preset(name)
    kind = PRESETS[preset].get("weights") if preset in PRESETS else None
    return str(kind) if kind and not words & {"bf16", "gguf"} else None


def hub_name(preset: str) -> str:
    """Return the repository on the Hugging Face hub whose configuration a preset is."""
    return str(PRESETS[preset]["hub"]) if preset in PRESETS else preset


def encoder_parameters(preset: str) -> int:
    """Return the parameters of the encoder of images that a preset's files have, or 0."""
    return int(PRESETS.get(preset, {}).get("encoder", 0))


@lru_cache(maxsize=1)
def _known() -> dict[str, str]:
    """Return the preset's name by each key under which it can be found; see `_key`."""
    known = {_key(other): name for name, row in PRESETS.items() for other in row.get("names", ())}
    known |= {_key(row["hub"]): name for name, row in PRESETS.items()}
    known |= {"vit": "ViT-B/16"}
    known |= {function.replace("_", ""): name for name, function in TORCHVISION.items()}
    return known | {_key(name): name for name in (*PRESETS, *TORCHVISION)}


def _words(name: str) -> list[str]:
    return _WORDS.split(name.lower())


def _key(name: str) -> str:
    """Return a name in lower case, without publisher, punctuation and ignored words."""
    plain = name if name in TORCHVISION else name.rsplit("/", 1)[-1]
    kept = (word for word in _words(plain) if word not in _IGNORED)
    return "".join(c for c in "".join(kept) if c.isalnum())
