"""Formulas that estimate memory without running the model: weights, KV cache and serving engines.

The subpackage `training` has the formulas for training, and `diffusion` those for image generators.
Modules are imported on first use.
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily

if TYPE_CHECKING:
    from allocsim.fitting.formulas.engines import (
        compute_buffer,
        llama_cpp,
        ollama,
        tensorrt_llm,
        transformers,
    )
    from allocsim.fitting.formulas.ggml import BASES, BLOCKS, NUMBERS, bytes_in
    from allocsim.fitting.formulas.gguf import gguf_sizes, read_gguf
    from allocsim.fitting.formulas.logged import Logged, logged_in
    from allocsim.fitting.formulas.needs import AS_LOGGED, Needs, ServingWork
    from allocsim.fitting.formulas.parts import (
        LARGE_WORKSPACE,
        WORKSPACE,
        MemoryPart,
        bytes_a_token,
        fits_in,
        kv_range,
    )
    from allocsim.fitting.formulas.server_options import (
        DEFAULTS,
        ServerOptions,
        is_stored_as,
        options_in,
        version_of,
    )
    from allocsim.fitting.formulas.sglang_server import sglang, static_fraction
    from allocsim.fitting.formulas.shapes import FAMILIES, Shape, parameters_of, shapes_of
    from allocsim.fitting.formulas.sizes import (
        KNOWN_TYPES,
        DecoderSizes,
        Latent,
        ModelSizes,
        sizes_of,
    )
    from allocsim.fitting.formulas.stored import read_safetensors, unconverted_in, weights_in
    from allocsim.fitting.formulas.vllm_server import vllm
    from allocsim.fitting.formulas.weights import (
        FORMATS,
        Weights,
        format_in,
        sizes_of_rank,
        weights_of,
        weights_of_rank,
    )

__all__ = [
    "AS_LOGGED", "BASES", "BLOCKS", "DEFAULTS", "DecoderSizes", "FAMILIES", "FORMATS",
    "KNOWN_TYPES", "LARGE_WORKSPACE", "Latent", "Logged", "MemoryPart", "ModelSizes", "NUMBERS",
    "Needs", "ServerOptions", "ServingWork", "Shape", "WORKSPACE", "Weights", "bytes_a_token",
    "bytes_in", "compute_buffer", "fits_in", "format_in", "gguf_sizes", "is_stored_as", "kv_range",
    "llama_cpp", "logged_in", "ollama", "options_in", "parameters_of", "read_gguf",
    "read_safetensors", "sglang", "shapes_of", "sizes_of", "sizes_of_rank", "static_fraction",
    "tensorrt_llm", "transformers", "unconverted_in", "version_of", "vllm", "weights_in",
    "weights_of", "weights_of_rank",
]  # fmt: skip

_HOMES = {
    "engines": "compute_buffer llama_cpp ollama tensorrt_llm transformers",
    "ggml": "BASES BLOCKS NUMBERS bytes_in",
    "gguf": "gguf_sizes read_gguf",
    "logged": "Logged logged_in",
    "needs": "AS_LOGGED Needs ServingWork",
    "parts": "LARGE_WORKSPACE WORKSPACE MemoryPart bytes_a_token fits_in kv_range",
    "server_options": "DEFAULTS ServerOptions is_stored_as options_in version_of",
    "sglang_server": "sglang static_fraction",
    "shapes": "FAMILIES Shape parameters_of shapes_of",
    "sizes": "KNOWN_TYPES DecoderSizes Latent ModelSizes sizes_of",
    "stored": "read_safetensors unconverted_in weights_in",
    "vllm_server": "vllm",
    "weights": "FORMATS Weights format_in sizes_of_rank weights_of weights_of_rank",
}

__getattr__ = lazily(globals(), _HOMES)
