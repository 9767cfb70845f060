"""Estimate of the memory that diffusers needs to generate images."""

from __future__ import annotations

from allocsim.errors import ConfigError, OutOfMemoryError
from allocsim.fitting.formulas import LARGE_WORKSPACE, WORKSPACE, MemoryPart
from allocsim.fitting.formulas.diffusion import DrawingWork, Drawn, draw
from allocsim.fitting.presets import Generator
from allocsim.fitting.task import Task
from allocsim.phantom import Gpu, context_seen
from allocsim.units import MIB, TIB

SOURCE = "the requests of diffusers 0.42, through the allocator of 2.15 (docs/commands/fit.md)"
_BESIDE, _QUANTISED = 0.01, 0.04
"""Fractions that are added to the simulated reserved memory, without and with quantised weights.

Real runs of diffusers were at most 0.5 % above the simulation. Published figures with quantised
weights were at most 3.2 % above it."""
_SMALL = 128 * MIB
"""Bytes that are added to the simulated reserved memory; they matter only for small models."""
_FEWER, _SEVERAL = 0.99, 0.84
"""Lowest ratios of real to simulated bytes of activations, with one image and with several.

With several images, cuDNN may convert fewer convolutions to channels-last."""


def generation_parts(task: Task, gpu: Gpu) -> tuple[MemoryPart, ...]:
    """Return the uses of the card's memory, such as weights, at the peak of generating images.

    PyTorch's allocator releases cached memory before memory runs out, so the pipeline is simulated
    with the card's memory. If it does not fit, it is simulated with unlimited memory. Raises
    ConfigError for images that are too large for any card.
    """
    assert isinstance(task.model, Generator)
    context = context_seen(gpu)
    share = _QUANTISED if task.quant else _BESIDE
    room = int((gpu.memory - context[1] - _SMALL) / (1 + share))
    try:
        drawn = drawn_on(task, gpu, max(room, 1))
    except OutOfMemoryError:
        try:
            drawn = drawn_on(task, gpu, TIB << 20)
        except OutOfMemoryError:
            raise ConfigError(
                f"{task.batch:,} images of {task.image:,} pixels are more than any card could hold"
            ) from None
    weights = sum(drawn.weights.values())
    parts = [MemoryPart(f"weights of {name}", size, size) for name, size in drawn.weights.items()]
    least = _FEWER if task.batch == 1 else _SEVERAL
    rest = drawn.allocated - weights
    cache = drawn.reserved - drawn.allocated
    high = cache + int(drawn.reserved * share) + _SMALL
    return (
        *parts,
        MemoryPart(f"activations of the {drawn.busiest}", int(least * rest), rest, "cuDNN's plans"),
        MemoryPart("rounding and fragmentation", 0, high, "cached blocks that the card may need"),
        MemoryPart("CUDA context", *context),
    )


def drawn_on(task: Task, gpu: Gpu, memory: int) -> Drawn:
    """Simulate the task on a card like `gpu` with `memory` bytes for PyTorch's allocator."""
    assert isinstance(task.model, Generator)
    is_recent = gpu.capability >= (9, 0)
    work = DrawingWork(
        batch=task.batch,
        pixels=task.image,
        dtype=task.dtype,
        quant=task.quant,
        offloads=task.offload,
        converts=is_recent,
        workspace=LARGE_WORKSPACE if is_recent else WORKSPACE,
        memory=memory,
    )
    return draw(task.model, work)
