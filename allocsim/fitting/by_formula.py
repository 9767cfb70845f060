"""Estimate of a task's memory as a sum of tensors, if no exact method can answer `fit`.

Exact methods are a run of the program, and a law, which has a formula for each of its requests.
An estimate is a range, and a task fits only if the upper end does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocsim._repr import Shown
from allocsim.errors import ConfigError, OutOfMemoryError
from allocsim.fitting.formulas import (
    LARGE_WORKSPACE,
    WORKSPACE,
    MemoryPart,
    ModelSizes,
    Weights,
    fits_in,
    kv_range,
    shapes_of,
    sizes_of,
    weights_of,
)
from allocsim.fitting.model import Configured
from allocsim.fitting.presets import Generator
from allocsim.fitting.published import named_format, unused_words_of
from allocsim.fitting.task import EAGER_NOTE, Task, notes_of_quant, usual_attention
from allocsim.phantom import Gpu, context_seen
from allocsim.units import MIB, TIB, format_range, format_size

if TYPE_CHECKING:
    from allocsim.fitting.formulas.diffusion import Drawn

_SUM = "sum of the tensors of separate PyTorch operations (docs/reference/parallel.md)"
_DRAWN = "the requests of diffusers 0.42, through the allocator of 2.15 (docs/commands/fit.md)"
_CONTEXT, _OVERHEAD = "CUDA context", "rounding and fragmentation"
_Parts = tuple[tuple[MemoryPart, ...], str]
"""Uses of the card's memory at the peak, and the source of the formula."""
_FEWEST_SCORES, _MOST_SCORES = 2, 5
"""Minimum and maximum number of 16-bit copies of the scores in eager attention at one time.

At least the scores and the masked scores exist (2). At most the softmax in 32 bits, which counts as
two, and its 16-bit copy exist too (5).
"""
_BESIDE, _QUANTISED = 0.01, 0.04
"""Fractions by which reserved memory may exceed that of the simulated generation of images.

The first is for plain weights: real runs of diffusers were at most 0.5 % above the simulation. The
second is for quantised weights: published figures were at most 3.2 % above it."""
_SMALL = 128 * MIB
"""Bytes added to the simulated reserved memory of images; they matter only for small models."""
_FEWER, _SEVERAL = 0.99, 0.84
"""Lowest ratios of real to simulated bytes of activations, for one generated image and several.

With several images, cuDNN may convert fewer convolutions to channels-last."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Estimate(Shown):
    """Memory that a task needs on a GPU, as a range computed by formulas.

    parts: all uses of the card's memory at the peak, such as weights, each with a range of bytes.
    source: documents or code from which the formula is.
    reason: sentence on why no exact method could answer; "" if a formula was requested.
    notes: limits of the answer, one sentence each.
    """

    task: Task
    gpu: Gpu
    parts: tuple[MemoryPart, ...]
    source: str
    reason: str
    notes: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        return "formula"

    @property
    def is_out_of_memory(self) -> bool:
        """True if the upper end of the estimated memory does not fit the card."""
        return not self.fits

    @property
    def process_bytes(self) -> tuple[int, int]:
        """Range (low, high) of the card memory that the process uses at its peak, in bytes."""
        return sum(part.low for part in self.parts), sum(part.high for part in self.parts)

    @property
    def needed_bytes(self) -> int:
        """Bytes that suffice for the task (upper end of the range), without the CUDA context."""
        return sum(part.high for part in self.parts if part.name != _CONTEXT)

    @property
    def fits(self) -> bool | None:
        """True if the high end of `process_bytes` fits, None if only the low end, else False."""
        return fits_in(self.gpu.memory, self.process_bytes)

    @property
    def runs_on_loan(self) -> bool:
        # A formula cannot model host memory that the driver lends.
        return False

    @property
    def peak_reserved_bytes(self) -> int:
        return self.needed_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        return self.needed_bytes - sum(part.high for part in self.parts if part.name == _OVERHEAD)

    def headline(self) -> str:
        name, memory = self.gpu.name, self.gpu.memory
        low, high = self.process_bytes
        if self.fits:
            return f"fits {name} with {format_range(memory - high, memory - low)} to spare"
        word = "may not" if self.fits is None else "does not"
        return f"{word} fit {name}: {format_range(low, high)} of {format_size(memory)}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for part in self.parts:
            yield part.name, format_range(part.low, part.high)


def estimate(task: Task, gpu: Gpu, reason: str = "", conf: str | None = None) -> Estimate:
    """Return the memory that `task` needs on `gpu`, by formula; ConfigError without a formula.

    reason: sentence on why no exact method could answer, to store in the result; or "".
    conf: allocator settings (PYTORCH_CUDA_ALLOC_CONF); a note reports that they are not used.
    """
    if task.generates:
        parts, source = _generated(task, gpu)
    else:
        parts, source = _trained(task, gpu) if task.is_training else _served(task, gpu)
    return Estimate(task, gpu, parts, source, reason, tuple(_left_out(task, gpu, conf)))


def _generated(task: Task, gpu: Gpu) -> _Parts:
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
    parts += [
        MemoryPart(f"activations of the {drawn.busiest}", int(least * rest), rest, "cuDNN's plans"),
        MemoryPart(_OVERHEAD, 0, high, "cached blocks that the card may need"),
        MemoryPart(_CONTEXT, *context),
    ]
    return tuple(parts), _DRAWN


def drawn_on(task: Task, gpu: Gpu, memory: int) -> Drawn:
    """Simulate the generation of images on a card like `gpu`, and return its peaks of memory.

    memory: bytes of the card that are available to PyTorch's allocator.
    """
    from allocsim.fitting.formulas.diffusion import DrawingWork, draw  # noqa: PLC0415  (slow)

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


def _trained(task: Task, gpu: Gpu) -> _Parts:
    from allocsim.fitting.parallel import shard  # noqa: PLC0415  (slow)
    from allocsim.fitting.training_input import training_of  # noqa: PLC0415  (slow)

    found = shard(training_of(task), gpu)
    low, _, high = found.reserved_bytes
    least, most = found.outside_bytes
    parts = [MemoryPart(part.name, part.size, part.size) for part in found.worst.parts]
    parts.append(
        MemoryPart(
            _OVERHEAD,
            low - found.allocated_bytes,
            high - found.allocated_bytes,
            "2 to 26 % in eight of ten runs of PyTorch",
        )
    )
    context = context_seen(gpu)
    parts.append(MemoryPart(_CONTEXT, *context))
    if most > context[1]:
        parts.append(MemoryPart("NCCL", least - context[0], most - context[1]))
    return tuple(parts), _SUM


def least_served(task: Task) -> int:
    """Return the bytes of weights and KV cache of a serving task: a lower bound of its memory.

    Raises ConfigError for a model without a formula.
    """
    sizes, weights = _held(task)
    prompt = max(task.lengths, default=task.prompt)
    kind = "fp32" if task.dtype == "fp32" else "bf16"
    cache, _ = kv_range(sizes, prompt + task.decode, kind)
    return weights.size + task.batch * cache


def _served(task: Task, gpu: Gpu) -> _Parts:
    from allocsim.fitting.serving import ServedMemory, serve  # noqa: PLC0415  (slow)

    prompt = max(task.lengths, default=task.prompt)
    found = serve(
        ServedMemory(task.model.name, *_held(task), "its configuration"),
        "transformers",
        gpu,
        batch=task.batch,
        prompt=prompt,
        decode=task.decode,
        requests=task.requests,
    )
    parts = found.needs.parts
    if task.attention == "eager":
        encoder = found.work.sizes.encoder
        seen = prompt if encoder is None else encoder.tokens or prompt
        scores = task.batch * found.work.sizes.heads * seen**2 * 2
        low, high = _FEWEST_SCORES, _MOST_SCORES
        parts += (MemoryPart("attention scores", low * scores, high * scores),)
    return parts, found.needs.source


def _held(task: Task) -> tuple[ModelSizes, Weights]:
    model = task.model
    if not isinstance(model, Configured):
        raise ConfigError(f"{model.name} is not a language model with a configuration")
    sizes = sizes_of(model.config)
    return sizes, weights_of(shapes_of(sizes), task.dtype, sizes)


def _left_out(task: Task, gpu: Gpu, conf: str | None) -> Iterator[str]:
    yield from gpu.notes
    yield from unused_words_of(task)
    yield from notes_of_quant(task)
    if task.attention == usual_attention(task.model) == "eager":
        yield EAGER_NOTE
    if isinstance(task.model, Generator):
        if not task.quant and (words := named_format(task.model.said).words):
            yield f"weights: {words!r} in the name is not used; --quant gives a format"
        if task.dtype == "fp16" and task.model.autoencoder["force_upcast"]:
            yield "with fp16 the autoencoder decodes in 32 bits; with bf16 it does not"
        yield "prompts are at their full length; ControlNets, adapters and tiling are not counted"
    config = task.model.config if isinstance(task.model, Configured) else {}
    if str(config.get("model_type")).startswith(("qwen3_5", "qwen3_next")) and task.is_training:
        yield "linear attention is that of PyTorch alone; flash-linear-attention's saves less"
    if task.compiles:
        yield "the formula is for separate operations; a compiled program saves fewer tensors"
    if task.start == "made":
        yield "the formula does not count the creation of the model on the card"
    if conf:
        yield "the formula does not know the effect of the allocator's settings"
