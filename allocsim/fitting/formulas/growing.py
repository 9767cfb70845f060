"""Memory of serving by Transformers with a growing cache, simulated on the allocator model.

A forward pass allocates and frees its tensors in the order of Llama's eager modules.  Every token
copies keys and values into a longer tensor, so those of one layer briefly exist twice.
"""

# Sources: transformers, cache_utils.py (`DynamicLayer.update`: torch.cat) and
# models/llama/modeling_llama.py.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from allocsim.core import CachingAllocator
from allocsim.errors import ConfigError, OutOfMemoryError
from allocsim.fitting.formulas.sizes import ModelSizes
from allocsim.fitting.formulas.weights import Weights
from allocsim.units import MIB, TIB

WORKSPACE = 8_519_680
"""Bytes of cuBLAS's workspace on cards below capability 9.0.

From PyTorch 2.15 on, it is allocated and freed with each matrix product.
"""
LARGE_WORKSPACE = 32 * MIB
_UNLIMITED = TIB << 20
_MOST_TOKENS = 64
"""Maximum number of generated tokens that are simulated; if there are more, evenly spread ones."""


@dataclass(frozen=True, slots=True)
class Grown:
    """Memory of a simulated `generate()` with a growing KV cache, in bytes.

    loaded: reserved memory when only the weights are loaded.
    allocated: peak of allocated memory.
    reserved: peak of reserved memory.
    cache: keys and values after the last token.
    """

    loaded: int
    allocated: int
    reserved: int
    cache: int


class _Run:
    """Simulated process that makes the requests and frees of a model's forward pass.

    A method that simulates a module returns the address of its result, and frees the block of its
    input `x`.

    each: bytes of an element.
    workspace: bytes of cuBLAS's workspace, which every linear layer requests and frees.
    rows: number of new tokens of all sequences.
    seen: number of earlier tokens of each sequence.
    """

    def __init__(self, sizes: ModelSizes, each: int, workspace: int) -> None:
        self.sizes, self.each, self.workspace = sizes, each, workspace
        self.layers = [sizes.of_layer(layer) for layer in range(sizes.layers)]
        self.gpu = CachingAllocator(_UNLIMITED)
        self.cache: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        address = self.gpu.malloc(max(size, 1))
        assert address is not None
        return address

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self.gpu.free(address)

    def product(self, rows: int, width: int) -> int:
        out = self.take(rows * width * self.each)
        self.free(self.take(self.workspace))
        return out

    def norm(self, rows: int) -> int:
        # An RMS norm is computed in 32 bits.
        wide = 4 * rows * self.sizes.width
        first = self.take(wide)
        squares = self.take(wide)
        mean = self.take(4 * rows)
        self.free(squares)
        out = self.take(wide)
        self.free(first, mean)
        narrow = self.take(rows * self.sizes.width * self.each)
        result = self.take(rows * self.sizes.width * self.each)
        self.free(narrow, out)
        return result

    def rotated(self, rows: int, width: int) -> int:
        size = rows * width * self.each
        first = self.take(size)
        half = self.take(size // 2)
        turned = self.take(size)
        self.free(half)
        second = self.take(size)
        self.free(turned)
        out = self.take(size)
        self.free(first, second)
        return out

    def kept(self, layer: int, rows: int, batch: int, seen: int) -> None:
        key, value = ((seen * batch + rows) * each * self.each for each in self.layers[layer].grown)
        # torch.cat allocates the longer tensor before the old one is freed.
        keys, values = self.cache[layer] if layer < len(self.cache) else (0, 0)
        new_keys = self.take(key)
        self.free(*[keys] * bool(keys))
        new_values = self.take(value)
        self.free(*[values] * bool(values))
        self.cache[layer : layer + 1] = [(new_keys, new_values)]

    def attention(self, x: int, layer: int, rows: int, batch: int, seen: int) -> int:
        sizes = self.layers[layer]
        queries = sizes.heads * sizes.head
        q = self.product(rows, queries)
        k = self.product(rows, sizes.kv_width)
        v = self.product(rows, sizes.kv_width)
        turned = self.rotated(rows, queries), self.rotated(rows, sizes.kv_width)
        self.free(q, k)
        self.kept(layer, rows, batch, seen)
        self.free(v, turned[1])
        out = self.take(rows * queries * self.each)
        sums = self.take(4 * rows * sizes.heads)
        self.free(sums)
        projected = self.product(rows, sizes.width)
        self.free(out, turned[0], x)
        return projected

    def feed_forward(self, x: int, layer: int, rows: int) -> int:
        # A mixture of experts is simulated as the two experts that a token chooses.
        inner = self.layers[layer].inner
        size = rows * inner * self.each
        if self.sizes.family in (
            "glm",
            "glm4",
            "phi3",
        ):  # these have gate and up in one tensor, which lives until the end
            fused = self.product(rows, 2 * inner)
            active = self.take(size)
            both = self.take(size)
            self.free(active, fused)
        elif self.sizes.family in ("gpt2", "phi", "starcoder2"):  # gelu_new, one tensor per term
            up = self.product(rows, inner)
            terms = [self.take(size) for _ in range(3)]
            both = terms.pop()
            self.free(up, *terms)
        else:
            gate = self.product(rows, inner)
            active = self.take(size)
            self.free(gate)
            up = self.product(rows, inner)
            both = self.take(size)
            self.free(active, up)
        down = self.product(rows, self.sizes.width)
        self.free(both, x)
        return down

    def angles(self, tokens: int) -> tuple[int, int]:
        # Cosine and sine are computed in 32 bits.
        wide = 4 * tokens * self.sizes.head
        half = self.take(wide // 2)
        both = self.take(wide)
        self.free(half)
        found = []
        for _ in range(2):
            first = self.take(wide)
            found.append(self.take(tokens * self.sizes.head * self.each))
            self.free(first)
        self.free(both)
        return found[0], found[1]

    def forward(self, batch: int, tokens: int, seen: int) -> None:
        rows, sizes = batch * tokens, self.sizes
        plain = rows * sizes.width * self.each
        indices = self.take(8 * rows), self.take(8 * tokens)  # token ids, and their positions
        embedded = hidden = self.take(plain)  # the caller holds a reference until the end
        angles = self.angles(tokens)
        for layer in range(sizes.layers):
            part = self.attention(self.norm(rows), layer, rows, batch, seen)
            summed = self.take(plain)
            self.free(part)
            part = self.feed_forward(self.norm(rows), layer, rows)
            out = self.take(plain)
            self.free(part, summed)
            if hidden != embedded:  # the caller holds a layer's input until the layer returns
                self.free(hidden)
            hidden = out
        last = self.norm(rows)
        self.free(hidden, embedded)
        logits = self.product(batch, sizes.vocabulary)
        self.free(last, logits, *angles, *indices)


def _lengths(prompt: int, decode: int) -> Iterator[int]:
    count = min(decode, _MOST_TOKENS)
    for step in range(count):
        yield prompt - 1 + (step + 1) * decode // count


@lru_cache(maxsize=8)  # only the workspace differs between cards
def grow(
    sizes: ModelSizes,
    weights: Weights,
    *,
    batch: int,
    prompt: int,
    decode: int,
    requests: int = 2,
    workspace: int = WORKSPACE,
) -> Grown:
    """Simulate transformers' `generate()` on a card without a memory limit, and return its peaks.

    batch: sequences that are generated at a time.
    prompt, decode: tokens of each prompt, and tokens generated after it.
    requests: number of calls of `generate()`, one after another.
    workspace: bytes of cuBLAS's workspace.
    """
    run = _Run(sizes, 4 if weights.name == "fp32" else 2, workspace)
    try:
        return _play(run, weights, (batch, prompt, decode), requests)
    except OutOfMemoryError:
        raise ConfigError(
            f"batch {batch:,} of {prompt:,} tokens is more than any card could hold"
        ) from None


def _play(run: _Run, weights: Weights, work: tuple[int, int, int], requests: int) -> Grown:
    batch, prompt, decode = work
    for each in weights.tensors:
        run.take(each.size)
        if each.scales:
            run.take(each.scales)
    loaded = run.gpu.reserved_bytes
    run.gpu.reset_peak_memory_stats()
    cache = 0
    for _ in range(requests):
        run.forward(batch, prompt, 0)
        for seen in _lengths(prompt, decode):
            run.forward(batch, 1, seen)
        cache = sum(run.gpu.size_of(address) for pair in run.cache for address in pair)
        for pair in run.cache:
            run.free(*pair)
        run.cache.clear()
    stats = run.gpu.memory_stats()
    return Grown(
        loaded,
        stats["allocated_bytes.all.peak"],
        stats["reserved_bytes.all.peak"],
        cache,
    )
