"""Transformers serving with a cache that grows: its requests, played through the allocator.

Rule: the tensors of a decoder's forward pass are asked for and given back in the order in which
the eager modules of transformers do so, and what the allocator reserves for them is the figure;
keys and values are copied into a longer tensor with every token, so that for a moment one layer's
stand there twice.  Sources: transformers, cache_utils.py (`DynamicLayer.update`: torch.cat) and
models/llama/modeling_llama.py; of attention, flash or memory-efficient kernels, which keep no
scores.  Queries, gates and experts of other families are taken by their sizes in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from allocsim.core import CachingAllocator
from allocsim.errors import ConfigError, OutOfMemoryError
from allocsim.estimate.shapes import Sizes
from allocsim.estimate.weights import Weights
from allocsim.units import MIB, TIB

__all__ = ["LARGE_WORKSPACE", "WORKSPACE", "Grown", "grow"]

WORKSPACE = 8_519_680
"""Bytes of cuBLAS's workspace, allocated and freed with each product from 2.15 on; on cards of
capability 9.0 and beyond `LARGE_WORKSPACE`."""
LARGE_WORKSPACE = 32 * MIB
_WITHOUT_END = TIB << 20
_MOST_TOKENS = 64
"""Generated tokens that are played; of more, so many evenly spread."""


@dataclass(frozen=True, slots=True)
class Grown:
    """Peaks of a run, in bytes.  loaded: reserved with the weights alone.  cache: of the keys and
    values at the end of a request."""

    loaded: int
    allocated: int
    reserved: int
    cache: int


class _Run:
    """One process: its allocator, and the sizes of what a pass asks for."""

    def __init__(self, sizes: Sizes, each: int, workspace: int) -> None:
        self.sizes, self.each, self.workspace = sizes, each, workspace
        self.gpu = CachingAllocator(_WITHOUT_END)
        self.cache: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        """A block, whose address is returned."""
        address = self.gpu.malloc(max(size, 1))
        assert address is not None
        return address

    def give(self, *addresses: int) -> None:
        """Free blocks."""
        for address in addresses:
            self.gpu.free(address)

    def product(self, rows: int, width: int) -> int:
        """What a linear layer returns; its workspace comes and goes."""
        out = self.take(rows * width * self.each)
        self.give(self.take(self.workspace))
        return out

    def norm(self, rows: int) -> int:
        """An RMS norm: computed in 32 bits."""
        wide = 4 * rows * self.sizes.width
        first = self.take(wide)
        squares = self.take(wide)
        mean = self.take(4 * rows)
        self.give(squares)
        out = self.take(wide)
        self.give(first, mean)
        narrow = self.take(rows * self.sizes.width * self.each)
        result = self.take(rows * self.sizes.width * self.each)
        self.give(narrow, out)
        return result

    def rotated(self, rows: int, width: int) -> int:
        """Queries or keys turned by their positions."""
        size = rows * width * self.each
        first = self.take(size)
        half = self.take(size // 2)
        turned = self.take(size)
        self.give(half)
        second = self.take(size)
        self.give(turned)
        out = self.take(size)
        self.give(first, second)
        return out

    def kept(self, layer: int, rows: int, batch: int, seen: int) -> None:
        """A layer's keys and values with the new ones behind them: a copy of each."""
        size = (seen * batch + rows) * self.sizes.kv_width * self.each
        keys, values = self.cache[layer] if layer < len(self.cache) else (0, 0)
        new_keys = self.take(size)
        self.give(*[keys] * bool(keys))
        new_values = self.take(size)
        self.give(*[values] * bool(values))
        self.cache[layer : layer + 1] = [(new_keys, new_values)]

    def attention(self, x: int, layer: int, rows: int, batch: int, seen: int) -> int:
        """The first half of a layer.  x: what the norm returned."""
        sizes = self.sizes
        queries = sizes.heads * sizes.head
        q = self.product(rows, queries)
        k = self.product(rows, sizes.kv_width)
        v = self.product(rows, sizes.kv_width)
        turned = self.rotated(rows, queries), self.rotated(rows, sizes.kv_width)
        self.give(q, k)
        self.kept(layer, rows, batch, seen)
        self.give(v, turned[1])
        out = self.take(rows * queries * self.each)
        sums = self.take(4 * rows * sizes.heads)
        self.give(sums)
        projected = self.product(rows, sizes.width)
        self.give(out, turned[0], x)
        return projected

    def feed_forward(self, x: int, rows: int) -> int:
        """The second half of a layer; of experts, the two that a token chooses."""
        inner = self.sizes.inner
        size = rows * inner * self.each
        if self.sizes.family == "phi3":  # gate and up are one tensor, which stays to the end
            fused = self.product(rows, 2 * inner)
            active = self.take(size)
            both = self.take(size)
            self.give(active, fused)
        elif self.sizes.family == "gpt2":  # gelu_new, term by term
            up = self.product(rows, inner)
            terms = [self.take(size) for _ in range(3)]
            both = terms.pop()
            self.give(up, *terms)
        else:
            gate = self.product(rows, inner)
            active = self.take(size)
            self.give(gate)
            up = self.product(rows, inner)
            both = self.take(size)
            self.give(active, up)
        down = self.product(rows, self.sizes.width)
        self.give(both, x)
        return down

    def angles(self, tokens: int) -> tuple[int, int]:
        """Cosine and sine of every position, computed in 32 bits."""
        wide = 4 * tokens * self.sizes.head
        half = self.take(wide // 2)
        both = self.take(wide)
        self.give(half)
        found = []
        for _ in range(2):
            first = self.take(wide)
            found.append(self.take(tokens * self.sizes.head * self.each))
            self.give(first)
        self.give(both)
        return found[0], found[1]

    def forward(self, batch: int, tokens: int, seen: int) -> None:
        """One pass over `tokens` new tokens of each of `batch` sequences."""
        rows, sizes = batch * tokens, self.sizes
        plain = rows * sizes.width * self.each
        indices = self.take(8 * rows), self.take(8 * tokens)  # the tokens, and their positions
        embedded = hidden = self.take(plain)  # the caller's name for it lasts to the end
        angles = self.angles(tokens)
        for layer in range(sizes.layers):
            part = self.attention(self.norm(rows), layer, rows, batch, seen)
            summed = self.take(plain)
            self.give(part)
            part = self.feed_forward(self.norm(rows), rows)
            out = self.take(plain)
            self.give(part, summed)
            if hidden != embedded:  # a layer's input is its caller's until the layer returns
                self.give(hidden)
            hidden = out
        last = self.norm(rows)
        self.give(hidden, embedded)
        logits = self.product(batch, sizes.vocabulary)
        self.give(last, logits, *angles, *indices)


def _lengths(prompt: int, decode: int) -> Iterator[int]:
    """What has been seen before each token that is played: the last, and others evenly."""
    count = min(decode, _MOST_TOKENS)
    for step in range(count):
        yield prompt - 1 + (step + 1) * decode // count


@lru_cache(maxsize=8)  # cards differ in their workspace alone
def grow(
    sizes: Sizes,
    weights: Weights,
    *,
    batch: int,
    prompt: int,
    decode: int,
    requests: int = 2,
    workspace: int = WORKSPACE,
) -> Grown:
    """`requests` requests, one after the other, on a card without end.

    Activations and cache have 16 bits a number, with 32-bit weights 32.  workspace: cuBLAS's.
    Raises ConfigError where they are more than any card could hold.
    """
    run = _Run(sizes, 4 if weights.name == "fp32" else 2, workspace)
    try:
        return _played(run, weights, (batch, prompt, decode), requests)
    except OutOfMemoryError:
        raise ConfigError(
            f"batch {batch:,} of {prompt:,} tokens is more than any card could hold"
        ) from None


def _played(run: _Run, weights: Weights, asked: tuple[int, int, int], requests: int) -> Grown:
    """asked: batch, prompt, decode."""
    batch, prompt, decode = asked
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
            run.give(*pair)
        run.cache.clear()
    stats = run.gpu.memory_stats()
    return Grown(
        loaded,
        stats["allocated_bytes.all.peak"],
        stats["reserved_bytes.all.peak"],
        cache,
    )
