"""Memory that serving a model needs on a GPU ("card"): its uses, each as a range of bytes."""

# Source: the ranges are those of public start-up logs, compared in docs/evidence/serving.md.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocsim.fitting.formulas.logged import NOTHING_LOGGED, Logged
from allocsim.fitting.formulas.parts import WORKSPACE, MemoryPart, bytes_a_token, kv_range
from allocsim.fitting.formulas.server_options import DEFAULTS, ServerOptions
from allocsim.fitting.formulas.sizes import ModelSizes
from allocsim.fitting.formulas.weights import Weights
from allocsim.units import MIB

AS_LOGGED = "as the log says"
"""Value of `MemoryPart.why` if the engine's log gives the size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWork:
    """Model and sequences to serve, with the GPU ("card") and the options of the server.

    sizes: sizes of the model, such as its hidden size; with several cards, of one card's part.
    weights: weights of the model; with several cards, of one card's part.
    memory: bytes of the card.
    context: range (low, high) of the size of a CUDA context on the card, in bytes.
    batch: number of sequences that are served at the same time.
    prompt, decode: number of tokens in each prompt, and of tokens generated for it.
    requests: number of batches, served one after another.
    kv_type: type of keys and values, one of `KV_TYPES`; "" for the engine's default.
    gpu_layers: llama.cpp's option -ngl; None for all layers.
    workspace: bytes of cuBLAS's workspace.
    logged: sizes from the engine's log, which replace those of formulas.
    cards: number of cards that share each layer (tensor parallelism).
    options: options of the server.
    card: name of the card, on which some defaults of engines depend.
    capability: compute capability of the card.
    threads: number of threads that the card runs at once.
    encoder: range (low, high) of the size of an image encoder that is loaded too, in bytes.
    drivers: range (low, high) of bytes to add to `memory`, because drivers report different
        capacities for the same card.
    """

    sizes: ModelSizes
    weights: Weights
    memory: int
    context: tuple[int, int]
    batch: int = 1
    prompt: int = 1024
    decode: int = 64
    requests: int = 2
    kv_type: str = ""
    gpu_layers: int | None = None
    workspace: int = WORKSPACE
    logged: Logged = NOTHING_LOGGED
    cards: int = 1
    options: ServerOptions = DEFAULTS
    card: str = ""
    capability: tuple[int, int] = (8, 0)
    threads: int = 0
    encoder: tuple[int, int] = (0, 0)
    drivers: tuple[int, int] = (0, 0)

    @property
    def capacity(self) -> tuple[int, int]:
        """Range (low, high) of the bytes that drivers report as the card's memory."""
        low, high = (max(self.memory + each, 1) for each in self.drivers)
        return low, high

    @property
    def tokens(self) -> int:
        return self.prompt + self.decode

    @property
    def number_size(self) -> int:
        """Bytes of an element of activations."""
        return 4 if self.weights.name in ("fp32", "F32") else 2

    @property
    def computed_in(self) -> str:
        """Type of keys and values: `kv_type`, or the type of activations if that is ""."""
        return self.kv_type or ("fp32" if self.number_size == 4 else "bf16")


def known_or(part: MemoryPart, logged: float | None) -> MemoryPart:
    """Return `part` with the size that an engine's log gives in place of the estimated range.

    logged: bytes in the log; None to return `part` unchanged.
    """
    if logged is None:
        return part
    return MemoryPart(part.name, round(logged), round(logged), AS_LOGGED)


@dataclass(frozen=True, slots=True)
class Largest:
    """Largest safe value of the option that sets a server's share of the card's memory.

    option: name of the option, such as "--gpu-memory-utilization".
    value: largest value of the option with which the start cannot run out of memory.
    room: range (low, high) of the number of tokens that then fit in the KV cache.
    longest: number of tokens in the longest sequence that is certain to fit in this cache.
    length: name of the option for the longest sequence, such as "--max-model-len".
    beside: other options that are assumed, such as "--max-num-seqs 1"; "" for none.
    has_to_be_set: True if the server does not start unless `length` is set to at most `longest`.
    """

    option: str
    value: float
    room: tuple[int, int]
    longest: int
    length: str
    beside: str = ""
    has_to_be_set: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Memory that one serving engine needs, and the options with which it fits.

    parts: uses of the GPU's memory, each with a range of bytes.
    source: documents that describe the engine's behaviour.
    host: uses of host memory.
    taken: range (low, high) of the bytes that the engine takes under its options; None if it takes
        only the bytes that it needs.
    loaded_beside: range (low, high) of the bytes that the engine's log counts as weights, but that
        are something else.
    pool: range (low, high) of the bytes of the KV cache, a part of `taken`; None if unknown.
    room: range (low, high) of the number of tokens that fit in the KV cache; None if unknown.
    largest: largest safe share of the GPU's memory; None if the engine has no such option.
    paste: command-line options with which the server can do the work; "" if there are none.
    least: options with the smallest KV cache that suffices for the work; "" if there are none.
    notes: assumptions, one sentence each.
    doubt: reason why the engine may not start with the given options; "" if it should.
    """

    engine: str
    parts: tuple[MemoryPart, ...]
    source: str
    host: tuple[MemoryPart, ...] = ()
    taken: tuple[int, int] | None = None
    loaded_beside: tuple[int, int] = (0, 0)
    pool: tuple[int, int] | None = None
    room: tuple[int, int] | None = None
    largest: Largest | None = None
    paste: str = ""
    least: str = ""
    notes: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def low(self) -> int:
        return sum(part.low for part in self.parts)

    @property
    def high(self) -> int:
        return sum(part.high for part in self.parts)


def biggest_matrix(weights: Weights) -> int:
    """Return the number of elements of the largest quantised matrix."""
    found: Iterable[int] = (
        each.shape.elements // max(each.shape.dims[0] if len(each.shape.dims) > 2 else 1, 1)
        for each in weights.tensors
        if each.is_quantised
    )
    return max(found, default=0)


def doubt_of(work: ServingWork, largest: Largest) -> str:
    """Return a warning if the server's option for its share of the memory is above the safe value.

    Return "" if it is not above it, not set, or as in the log of an earlier start.

    largest: largest safe value of the option.
    """
    given = work.options.fraction
    if given in (None, work.logged.options.fraction) or given <= largest.value:
        return ""
    return f"{largest.option} {given:g} is above the largest safe value, {largest.value:g}"


_COMMUNICATION = 30 * MIB, 310 * MIB
"""Bytes on each GPU of the buffers through which tensor parallel GPUs communicate.

A GPU needs at least the first number, and at most the second number times the number of GPUs."""


def context_part(work: ServingWork) -> MemoryPart:
    why = "range of driver, kernels and libraries in out-of-memory messages"
    beside = work.logged.beside_torch or 0
    # Some releases of vLLM log the whole context, others only its growth since a first measurement.
    part = MemoryPart("CUDA context", *work.context, why)
    return known_or(part, beside if beside > work.context[1] else None)


def weights_part(work: ServingWork) -> MemoryPart:
    size = work.weights.size
    why = f"{work.weights.name}, {work.weights.bits:.2f} bits each"
    return known_or(MemoryPart("weights", size, size, why), work.logged.weights)


def cache_part(work: ServingWork, block: int) -> MemoryPart:
    """Return the memory for the KV cache of the sequences of one batch in `work`.

    block: number of tokens per block of a paged cache; each sequence takes whole blocks.
    """
    kind = work.computed_in
    low, high = kv_range(work.sizes, work.tokens, kind, block=block)
    why = f"{work.batch} x {work.tokens:,} tokens in {kind}"
    if low != high:
        why += "; less if the engine uses the sliding window"
    return MemoryPart("keys and values", work.batch * low, work.batch * high, why)


def forward_bytes(work: ServingWork, rows: int) -> tuple[int, int]:
    """Return the lowest and the highest estimate of the activations in a forward pass, in bytes.

    The logits are not included.

    work: served model, from which the dimensions of its last layer are used.
    rows: number of tokens in the forward pass.
    """
    sizes = work.sizes.of_layer(work.sizes.layers - 1)
    inner = 3 * sizes.inner
    if sizes.experts:
        inner = sizes.chosen * (2 * sizes.width + 3 * sizes.expert_inner) + 3 * sizes.shared_inner
    low = rows * work.number_size * (inner + 2 * sizes.width)
    return low, low + low // 10 + rows * work.number_size * 3 * sizes.width


def communication_parts(work: ServingWork) -> tuple[MemoryPart, ...]:
    """Return the buffers through which tensor parallel GPUs communicate; () for a single GPU."""
    if work.cards == 1:
        return ()
    low, each = _COMMUNICATION
    why = "NCCL's and the all-reduce's, by how the cards are connected; up to 0.3 GiB per card of "
    why += "the group in posted logs"
    return (MemoryPart("communication buffers", low, each * work.cards, why),)


def parallel_option(work: ServingWork, option: str) -> str:
    return f"{option} {work.cards} " if work.cards > 1 else ""


def room_of(work: ServingWork, pool: tuple[int, int], block: int) -> tuple[int, int]:
    """Return the range (low, high) of the number of tokens that fit in a KV cache.

    pool: range (low, high) of the bytes of the cache.
    block: number of tokens per block of a paged cache; only whole blocks count.
    """
    each = bytes_a_token(work.sizes, work.computed_in) * block
    low, high = (max(size, 0) // each * block for size in pool)
    return low, high
