"""Image generators that `fit` knows.

`images.json` has the configurations of their networks, under the keys of diffusers and
transformers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from allocsim.fitting.formulas.diffusion import ImagePipeline

_TABLES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("images.json").read_text(encoding="utf-8")
)
GENERATORS: dict[str, dict[str, Any]] = _TABLES["models"]
"""Rows of `images.json` that describe image generators, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Generator:
    """An image generator that diffusers runs.

    pixels: height and width of the images for which it was trained.
    """

    name: str
    pixels: int
    pipeline: ImagePipeline
    sees: bool = True


@cache
def generator_of(name: str) -> Generator:
    """Return the image generator with a name in `GENERATORS`."""
    row = GENERATORS[name]
    autoencoder = _TABLES["autoencoders"][row["autoencoder"]]
    encoders = {each: _TABLES["encoders"][each] for each in row["encoders"]}
    pipeline = ImagePipeline(row["class"], row["guided"], row["denoiser"], autoencoder, encoders)
    return Generator(name, row["pixels"], pipeline)
