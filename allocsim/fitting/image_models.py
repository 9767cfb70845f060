"""Image generators, such as Stable Diffusion, that `fit` knows.

`images.json` has the configurations of their networks, under the keys of diffusers and
transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_TABLES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("images.json").read_text(encoding="utf-8")
)
GENERATORS: dict[str, dict[str, Any]] = _TABLES["models"]
"""Dictionary from the name of each image generator to its description in `images.json`."""


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
    has_encoder: always False; other classes of models have True for encoder-decoder models.
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
        autoencoder=_TABLES["autoencoders"][row["autoencoder"]],
        encoders={each: _TABLES["encoders"][each] for each in row["encoders"]},
    )
