"""Memory of a diffusers pipeline: text encoders, denoiser and decoder of images.

The allocator calls of each network are computed, and run on this package's model of PyTorch's
allocator.
"""

# Sources: diffusers 0.42, diffusers.pipelines for the order, batches and tokens. With
# `enable_model_cpu_offload`, each network, before it runs, moves its predecessor to the host and
# empties the cache. The first network has no predecessor, so T5 stays on the GPU while the second
# prompt is encoded.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from allocsim.core import CachingAllocator
from allocsim.fitting.formulas.diffusion.convolutional import decoder, encoder_of_images, unet
from allocsim.fitting.formulas.diffusion.network import Config, Network, Weight, taken
from allocsim.fitting.formulas.diffusion.transformers import CLIP_TOKENS, clip, flux, sd3, t5
from allocsim.fitting.presets import Generator

__all__ = ["DrawingWork", "Drawn", "draw", "network_weights"]

_DENOISERS: dict[str, tuple[Callable[..., None], int]] = {
    "UNet2DConditionModel": (unet, 0),
    "SD3Transformer2DModel": (sd3, 256),
    "FluxTransformer2DModel": (flux, 512),
}
"""Dictionary from a denoiser's class to its forward pass and the length of T5's input in tokens."""
_SCALE = 8
"""Ratio of an image's side in pixels to its latent's side in elements."""
_STEPS = 2
"""Number of simulated denoising steps; further steps would make the same allocator calls."""


def networks_of(generator: Generator) -> dict[str, Callable[[Network, int, int], None]]:
    """Return a dictionary from the names of a pipeline's networks to their forward passes.

    The networks are listed in running order.  A forward pass is a function of a `Network`, the
    number of images, and the side of a latent.
    """
    forward, tokens = _DENOISERS[generator.kind]
    found: dict[str, Callable[[Network, int, int], None]] = {}
    context = CLIP_TOKENS if generator.kind != "FluxTransformer2DModel" else 0
    for name, config in generator.encoders.items():
        is_t5 = config["model_type"] == "t5"
        context += tokens * is_t5
        found[name] = _encoding(config, tokens if is_t5 else CLIP_TOKENS)

    def denoise(net: Network, batch: int, side: int) -> None:
        factor = 2 if generator.is_guided else 1
        for _ in range(_STEPS if net.gpu else 1):
            forward(net, generator.denoiser, factor * batch, side, context)

    def decode(net: Network, batch: int, side: int) -> None:
        if net.gpu is None:
            encoder_of_images(net, generator.autoencoder)
        decoder(net, generator.autoencoder, batch, side)

    return found | {"denoiser": denoise, "autoencoder": decode}


@lru_cache(maxsize=8)
def network_weights(generator: Generator) -> dict[str, tuple[Weight, ...]]:
    """Return a dictionary from the names of a pipeline's networks to their weights."""
    found = {}
    for name, run in networks_of(generator).items():
        net = Network(None)
        run(net, 1, _SCALE)
        found[name] = tuple(net.weights)
    return found


def _encoding(config: Config, tokens: int) -> Callable[[Network, int, int], None]:
    def encode(net: Network, _batch: int, _side: int) -> None:
        # One prompt is encoded, and its encoding is repeated for each image.
        (t5 if config["model_type"] == "t5" else clip)(net, config, 1, tokens)

    return encode


@dataclass(frozen=True, slots=True)
class Drawn:
    """Memory of a simulated diffusers pipeline, in bytes.

    weights: bytes of the weights that were on the GPU at the peak of allocated memory, keyed by
        network.
    allocated, reserved: peaks of allocated and of reserved memory.
    busiest: name of the network that ran at the peak of allocated memory.
    """

    weights: Mapping[str, int]
    allocated: int
    reserved: int
    busiest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingWork:
    """Images to generate, with the options of the pipeline.

    batch: number of images at a time.
    pixels: height and width of each image.
    dtype: type of weights and activations.
    quant: format of the quantised linear modules of the denoiser and of T5; "" for none.
    offloads: True if only the network that runs is on the GPU.
    converts: True if cuDNN converts 3 x 3 convolutions to channels-last also in 32 bits; it always
        does in 16 bits.
    workspace: bytes of cuBLAS's workspace.
    memory: bytes of the GPU that are available to PyTorch's allocator.
    """

    batch: int
    pixels: int
    dtype: str
    quant: str
    offloads: bool
    converts: bool
    workspace: int
    memory: int


@lru_cache(maxsize=64)
def draw(generator: Generator, work: DrawingWork) -> Drawn:
    """Simulate the pipeline of an image generator, and return its peaks of memory.

    Raises OutOfMemoryError if `work.memory` is too small.
    """
    gpu = CachingAllocator(work.memory)
    side = max(work.pixels // (2 * _SCALE), 1) * 2
    sizes = _sizes(generator, work)
    held: dict[str, list[int]] = {}

    def load(name: str) -> None:
        held[name] = [taken(gpu, size) for size in sizes[name]]

    for name in () if work.offloads else sizes:
        load(name)
    taken(gpu, work.workspace)
    best, reserved = Drawn({}, 0, 0, ""), 0
    networks = networks_of(generator)
    before = dict(zip(list(networks)[1:], networks, strict=False))
    prompts = 2 if generator.is_guided else 1
    for name in (*prompts * list(generator.encoders), "denoiser", "autoencoder"):
        if work.offloads:
            for address in held.pop(before.get(name, ""), ()):
                gpu.free(address)
            gpu.empty_cache()
            if name not in held:
                load(name)
        gpu.reset_peak_memory_stats()
        is_decoder = name == "autoencoder"
        is_wide = work.dtype == "fp32"
        if is_decoder and work.dtype == "fp16" and generator.autoencoder["force_upcast"]:
            is_wide = True
            for i, size in enumerate(sizes[name]):
                old, held[name][i] = held[name][i], taken(gpu, 2 * size)
                gpu.free(old)
        net = Network(
            gpu,
            each=4 if is_wide else 2,
            converts=work.converts or not is_wide,
            dequantises=bool(work.quant) and generator.is_quantised(name),
        )
        networks[name](net, work.batch, side)
        stats = gpu.memory_stats()
        reserved = max(stats["reserved_bytes.all.peak"], reserved)
        allocated = stats["allocated_bytes.all.peak"]
        if allocated > best.allocated:
            best = Drawn({each: sum(sizes[each]) for each in held}, allocated, 0, name)
    return replace(best, reserved=reserved)


def _sizes(generator: Generator, work: DrawingWork) -> dict[str, list[int]]:
    each = 4 if work.dtype == "fp32" else 2
    found = {}
    for name, weights in network_weights(generator).items():
        quant = work.quant if generator.is_quantised(name) else ""
        found[name] = [one.size(each, quant, widens=work.dtype == "fp16") for one in weights]
    return found
