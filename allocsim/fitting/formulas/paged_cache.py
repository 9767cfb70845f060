"""Blocks of vLLM's paged KV cache, and the number of tokens that fit in them."""

# The cache consists of blocks of 16 tokens. Layers of one kind are divided into groups of equal
# size. A block of a group holds 16 tokens for all layers of the group, and all groups take blocks
# from one pool. A layer with a window of w tokens holds at most w - 1 tokens of earlier steps, and
# the tokens of the current step. A layer with linear attention holds one state; a block is at least
# as large as a state. vLLM prints the number of sequences of maximum length that fit, times this
# length; earlier releases print the tokens in the blocks of each group.
# Sources: vLLM 0.33, `get_kv_cache_capacity`, `SlidingWindowSpec` and the grouping of layers; for
# earlier releases, public logs of Qwen3.5.

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from allocsim.fitting.formulas.parts import row_bytes
from allocsim.fitting.formulas.sizes import ModelSizes
from allocsim.units import round_up

BLOCK = 16
_IN_FLIGHT = (1, 2)
"""Number of forward passes in progress, without asynchronous scheduling and with it."""
_EVEN = 1.5
"""Ratio of layer counts that decides how many layers a group (layers that share blocks) has.

There are two kinds of layers, such as with and without a sliding window.  A group has as many
layers as the rarer kind, or as the more frequent kind if the ratio of both is below this number."""
_LAST_BY_GROUP, _FIRST_BY_REQUEST = (0, 19), (0, 25)
"""Releases of vLLM between which the meaning of the logged number of tokens changed.

Up to the first, vLLM logs the tokens in the blocks of each group of layers.  From the second on, it
logs the number of sequences of maximum length that fit, times this length.  Releases between them
may log either."""


@dataclass(frozen=True, eq=False)
class PagedCache:
    """vLLM's KV cache on one GPU, which is divided into blocks of tokens.

    sizes: sizes of the model; with several GPUs, those of one GPU's part.
    kind: type of keys and values, one of `KV_TYPES`.
    longest: maximum number of tokens in a sequence (--max-model-len).
    chunk: maximum number of tokens in one forward pass.
    version: release of vLLM, as (major, minor).
    """

    sizes: ModelSizes
    kind: str
    longest: int
    chunk: int
    version: tuple[int, int]

    @cached_property
    def _rows(self) -> list[int]:
        return [row_bytes(each.kept, self.kind) for each in self.sizes.cached]

    @cached_property
    def _page(self) -> int:
        # A block of a layer must be at least as large as a state of linear attention.
        state = self.sizes.linear.state_bytes if self.sizes.linear else 0
        return max(max(round_up(-(-state // row), BLOCK), BLOCK) * row for row in self._rows)

    @cached_property
    def _lengths(self) -> list[int]:
        # Layers with fewer bytes per token get blocks of more tokens, if these blocks then have as
        # many bytes as the largest.
        pages = [BLOCK * row for row in self._rows]
        return [BLOCK * (1 if self._page % page else self._page // page) for page in pages]

    @cached_property
    def _counts(self) -> list[int]:
        linear = self.sizes.linear
        return [each.count for each in self.sizes.cached] + ([len(linear.layers)] if linear else [])

    @property
    def is_uniform(self) -> bool:
        """True if every layer caches all tokens, so that tokens are proportional to bytes."""
        return len(self._counts) == 1 and not self.sizes.windowed

    @cached_property
    def _size(self) -> int:
        few, many = min(self._counts), max(self._counts)
        return many if many < _EVEN * few else few

    @cached_property
    def _groups(self) -> list[int]:
        return [-(-count // self._size) for count in self._counts]

    def _blocks(self, longest: int, steps: int) -> int:
        each = []
        for layers, length in zip(self.sizes.cached, self._lengths, strict=True):
            seen = min(layers.window - 1 + steps * self.chunk, longest)
            is_windowed = layers.window > 0
            each.append(-(-(seen if is_windowed else longest) // length) + is_windowed)
        # A state takes a second block if prefixes are cached; this is not known here.
        each.append(steps)
        return sum(count * blocks for count, blocks in zip(self._groups, each, strict=False))

    def bytes_of(self, longest: int) -> int:
        """Return the bytes of the smallest cache that holds one sequence of `longest` tokens."""
        return self._blocks(longest, _IN_FLIGHT[1]) * self._page * self._size

    def _pool(self, size: int) -> int:
        return max(size, 0) // (self._page * self._size)

    def tokens(self, low: int, high: int) -> tuple[int, int]:
        """Return the range of the number of tokens that vLLM logs for a cache.

        low, high: range of the bytes of the cache.
        """
        length = self._lengths[0]
        if self.is_uniform:
            return self._pool(low) * length, self._pool(high) * length
        found = []
        if self.version < _FIRST_BY_REQUEST:
            found += [self._pool(size) // sum(self._groups) * length for size in (low, high)]
        if self.version > _LAST_BY_GROUP:
            requests = zip((low, high), reversed(_IN_FLIGHT), strict=True)
            found += [
                int(self._pool(size) / self._blocks(self.longest, steps) * self.longest)
                for size, steps in requests
            ]
        return min(found), max(found)

    def longest_in(self, size: int) -> int:
        """Return the number of tokens, at most `longest`, of the longest sequence that fits.

        size: bytes of the cache.
        """
        length, blocks, steps = self._lengths[0], self._pool(size), _IN_FLIGHT[1]
        low, high = 0, self.longest // length + 1
        while low < high:  # the number of blocks grows with the length
            middle = (low + high + 1) // 2
            is_held = self._blocks(middle * length, steps) <= blocks
            low, high = (middle, high) if is_held else (low, middle - 1)
        return min(low * length, self.longest)
