"""Memory of serving by Transformers, whose KV cache grows with every token.

The allocator calls are computed, and run on this package's model of PyTorch's allocator.  A forward
pass allocates and frees its tensors in the order of Llama's eager modules.  For every token, keys
and values are copied to a longer tensor, so those of one layer exist twice for a short time.
"""

# Sources: transformers, cache_utils.py (`DynamicLayer.update`: torch.cat) and
# models/llama/modeling_llama.py.

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from allocsim.core import FREE, MALLOC, ReplayAllocator
from allocsim.errors import ConfigError
from allocsim.fitting.formulas.parts import WORKSPACE
from allocsim.fitting.formulas.sizes import ModelSizes
from allocsim.fitting.formulas.weights import Weights
from allocsim.units import TIB
from allocsim.workload import KnownProgram, peak_of_known

_Rows = NDArray[np.int64]
"""Allocator calls: array with rows for kind (MALLOC or FREE), block and size, a column per call."""

_UNLIMITED = TIB << 20
_RECORDED = 3
"""Number of first tokens whose allocator calls are listed; those of later ones are extrapolated."""
_MOST_TOKENS = 64
"""Maximum number of simulated tokens; of more tokens, an evenly spaced selection is simulated."""


@dataclass(frozen=True, slots=True)
class Grown:
    """Memory of a simulated call of `generate()` with a growing KV cache, in bytes.

    loaded: reserved memory after the weights are loaded.
    allocated: peak of allocated memory.
    reserved: peak of reserved memory.
    cache: bytes of the blocks of keys and values after the last token.
    """

    loaded: int
    allocated: int
    reserved: int
    cache: int


class _Run:
    """Recorder of the allocator calls of a model's forward pass.

    There is one method per module.  It frees the block of its input `x` and returns the index of
    its result's block.  Its argument `rows` is the number of new tokens in all sequences, and
    `seen` the number of earlier tokens in each sequence.

    each: bytes of an element of activations.
    workspace: bytes of cuBLAS's workspace, which every linear layer requests and frees.
    """

    def __init__(self, sizes: ModelSizes, each: int, workspace: int) -> None:
        self.sizes, self.each, self.workspace = sizes, each, workspace
        self.layers = [sizes.of_layer(layer) for layer in range(sizes.layers)]
        self.blocks = 0
        self.cache: list[tuple[int, int]] = []
        self._rows: list[tuple[int, int, int]] = []

    def take(self, size: int) -> int:
        block = self.blocks
        self._rows.append((MALLOC, block, max(size, 1)))
        self.blocks += 1
        return block

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self._rows.append((FREE, block, 0))

    def take_rows(self) -> _Rows:
        """Return the allocator calls since the last call of this method.

        Raises OverflowError if a request is larger than the memory of any GPU.
        """
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 3).T
        if np.any(rows[2] > _UNLIMITED):
            raise OverflowError
        self._rows.clear()
        return rows

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
        old = self.cache[layer : layer + 1]
        new_keys = self.take(key)
        self.free(*(keys for keys, _ in old))
        new_values = self.take(value)
        self.free(*(values for _, values in old))
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
        ):  # these model types compute gate and up as one tensor, which lives until the end
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


def _lengths(prompt: int, decode: int) -> list[int]:
    count = min(decode, _MOST_TOKENS)
    return [prompt - 1 + (step + 1) * decode // count for step in range(count)]


@lru_cache(maxsize=8)  # between GPUs, only the argument `workspace` differs
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
    """Simulate transformers' `generate()` on a GPU without a memory limit, and return its peaks.

    batch: number of sequences that are generated at the same time.
    prompt, decode: number of tokens in each prompt, and of tokens generated after it.
    requests: number of calls of `generate()`, one after another.
    workspace: bytes of cuBLAS's workspace.

    Raises ConfigError if the model requests more memory at once than any GPU has.
    """
    run = _Run(sizes, 4 if weights.name == "fp32" else 2, workspace)
    try:
        loading = _loading(run, weights)
        loaded, _ = _simulated(loading)
        first = run.blocks
        request = _request(run, batch, prompt, decode)
        kept = [block for pair in run.cache for block in pair]
        run.free(*kept)
        freed, blocks = run.take_rows(), run.blocks - first
        rows = [loading, request]
        for number in range(1, requests):
            rows += [_renamed(freed, (number - 1) * blocks), _renamed(request, number * blocks)]
        reserved, allocator = _simulated(np.concatenate(rows, axis=1))
    except OverflowError:
        raise ConfigError(
            f"batch {batch:,} of {prompt:,} tokens is more than any card could hold"
        ) from None
    # The cache of the last call of generate() is not freed.
    places = [allocator.take_name(block + (requests - 1) * blocks) for block in kept]
    cache = sum(allocator.size_of(each) for each in places if each is not None)
    return Grown(loaded, allocator.max_memory_allocated(), reserved, cache)


def _loading(run: _Run, weights: Weights) -> _Rows:
    for each in weights.tensors:
        run.take(each.size)
        if each.scales:
            run.take(each.scales)
    return run.take_rows()


def _renamed(rows: _Rows, further: int) -> _Rows:
    # Repeat the allocator calls with other blocks.
    renamed: _Rows = rows + np.array([[0], [further], [0]])
    return renamed


def _request(run: _Run, batch: int, prompt: int, decode: int) -> _Rows:
    run.forward(batch, prompt, 0)
    parts = [run.take_rows()]
    lengths = _lengths(prompt, decode)
    before = run.blocks
    for seen in lengths[:_RECORDED]:
        before = run.blocks
        run.forward(batch, 1, seen)
        parts.append(run.take_rows())
    further = lengths[_RECORDED:]
    if further:
        # Sizes grow linearly with the length, and each token frees the cache of the previous token.
        blocks, (shorter, last) = run.blocks - before, parts[-2:]
        growth = (last - shorter)[2] // (lengths[_RECORDED - 1] - lengths[_RECORDED - 2])
        for number, seen in enumerate(further, 1):
            longer = _renamed(last, number * blocks)
            longer[2] += (seen - lengths[_RECORDED - 1]) * growth
            parts.append(longer)
        added = len(further) * blocks
        run.blocks += added
        run.cache = [(keys + added, values + added) for keys, values in run.cache]
    return np.concatenate(parts, axis=1)


def _simulated(rows: _Rows) -> tuple[int, ReplayAllocator]:
    # Returns the reserved bytes at the end, which are the highest, and the allocator.
    allocator = ReplayAllocator(_UNLIMITED)
    kind, block, size = rows
    peak, is_out_of_memory = peak_of_known(KnownProgram(kind, block, size, block), allocator)
    if is_out_of_memory:
        raise OverflowError
    return peak, allocator
