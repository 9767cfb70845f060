"""Presets (built-in models), found by their name on the Hugging Face hub or Ollama, or similar.

`models.json` has, for each preset, the values of config.json that determine a tensor's shape or a
kernel.  `images.json` has the configurations of the networks of image generators, under the keys of
diffusers and transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

Configuration = Mapping[str, Any]

PRESETS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("models.json").read_text(encoding="utf-8")
)
"""Dictionary from the name of each preset (built-in model) to its object in `models.json`."""

CONFIGURATIONS: dict[str, Configuration] = {name: row["config"] for name, row in PRESETS.items()}
"""Dictionary from the name of each preset to its configuration for Hugging Face transformers."""

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
"""Dictionary from image classifiers to the function of torchvision.models that builds each."""

_IMAGES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("images.json").read_text(encoding="utf-8")
)
GENERATORS: dict[str, dict[str, Any]] = _IMAGES["models"]
"""Dictionary from the name of each image generator to its description in `images.json`."""

_IGNORED = frozenset(("base", "chat", "hf", "instruct", "it", "meta", "pt", "unsloth"))
"""Words in the name of a model that say nothing about its architecture."""
_WORDS = re.compile(r"[\s_:-]+")
_FORMAT = re.compile(
    r"-(i?q\d(?:-(?:0|1|k|s|m|l|xs|xl|xxs|nl))*|(?:quantized\.)?(?:w\da\d{1,2})|g\d{2,4}|\d{2,4}g"
    r"|int\d|\dbit|[\d.]+bpw|n?v?fp4|mxfp4|fp8|fp16|bf16|f16|awq|gptq|auto-?round|bnb|gguf|mlx"
    r"|exl[23]|hqq|aqlm|qat|ct|ud|dynamic|block|quantized|unquantized)(?=-)"
)
"""Pattern of words in a model's name that describe the format of its weights, such as "awq"."""
_FAMILY = re.compile(r"[a-z]+")
_ALIKE = 0.5
_SUGGESTED = 3


@dataclass(frozen=True, slots=True, eq=False)
class Generator:
    """Image generator that diffusers runs.

    pixels: height and width of the images for which it was trained.
    kind: class of the denoiser.
    is_guided: True if each image is denoised with and without its prompt.
    denoiser, autoencoder: configurations of these networks.
    encoders: configurations of the text encoders, keyed by name.
    said: name that the user typed, if it indicates a quantization; else "".
    sees, hears: True if the model handles images or sound.
    has_encoder: always False: no decoder attends to an encoder (see `Configured.has_encoder`).
    """

    name: str
    pixels: int
    kind: str
    is_guided: bool
    denoiser: Mapping[str, Any]
    autoencoder: Mapping[str, Any]
    encoders: Mapping[str, Mapping[str, Any]]
    said: str = ""
    sees: bool = True
    hears: bool = False
    has_encoder: bool = False

    def is_quantised(self, network: str) -> bool:
        """Return True if --quant applies to `network`, because it is the denoiser or T5."""
        config = self.encoders.get(network, {})
        return network == "denoiser" or config.get("model_type") == "t5"


@cache
def generator_of(name: str) -> Generator:
    """Return the image generator called `name`, a key of `GENERATORS`."""
    row = GENERATORS[name]
    return Generator(
        name=name,
        pixels=row["pixels"],
        kind=row["class"],
        is_guided=row["guided"],
        denoiser=row["denoiser"],
        autoencoder=_IMAGES["autoencoders"][row["autoencoder"]],
        encoders={each: _IMAGES["encoders"][each] for each in row["encoders"]},
    )


def find_preset(name: str) -> str | None:
    """Return the full name of the preset meant by `name`, such as "qwen2.5:7b", or None."""
    if name in CONFIGURATIONS or name in TORCHVISION or name in GENERATORS:
        return name
    known = _known()
    whole = "".join(c for c in name.lower().replace("+", "plus") if c.isalnum())
    return known.get(_key(name), known.get(whole))


def near_presets(name: str) -> tuple[str, ...]:
    """Return up to three presets of the same family with similar names, most similar first."""
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


def hub_name(preset: str) -> str:
    return str(PRESETS[preset]["hub"]) if preset in PRESETS else preset


def encoder_parameters(preset: str) -> int:
    """Return the number of parameters of a preset's image encoder; 0 if the preset has none."""
    return int(PRESETS.get(preset, {}).get("encoder", 0))


@cache
def _known() -> dict[str, str]:
    presets = PRESETS | GENERATORS
    known = {_key(other): name for name, row in presets.items() for other in row.get("names", ())}
    known |= {_key(row["hub"]): name for name, row in presets.items()}
    known |= {"vit": "ViT-B/16"}
    known |= {function.replace("_", ""): name for name, function in TORCHVISION.items()}
    return known | {_key(name): name for name in (*presets, *TORCHVISION)}


def format_words(name: str) -> list[str]:
    """Return the words of a model's name that describe the format of its weights, such as "awq"."""
    words = [found.replace("quantized.", "") for found in _FORMAT.findall(_joined(name))]
    return [word.replace("auto-round", "autoround") for word in words]


def _joined(name: str) -> str:
    plain = name if name in TORCHVISION else name.rsplit("/", 1)[-1]
    return f"-{'-'.join(_WORDS.split(plain.lower()))}-"


def _key(name: str) -> str:
    words = _FORMAT.sub("", _joined(name)).split("-")
    kept = "".join(word for word in words if word not in _IGNORED).replace("+", "plus")
    return "".join(c for c in kept if c.isalnum())
