"""Number of tokens that vLLM's cache holds, for models with one kind of layer and with two.

Rule: the cache consists of blocks of 16 tokens. Layers of one kind are divided into groups of equal
size; a group's block holds the tokens of all its layers, and all groups take blocks from one pool.
A layer with a window of w tokens holds at most w - 1 tokens and the tokens being computed. A
layer with linear attention holds one state, and blocks have as many tokens as a state has bytes.

The printed number of tokens is the number of longest requests that fit, times their length; earlier
releases print the blocks of each group. Source: vLLM 0.33, `get_kv_cache_capacity`,
`SlidingWindowSpec` and the grouping of layers; for earlier releases, public logs of Qwen3.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.fitting.formulas.sizes import ModelSizes
from allocsim.units import round_up

BLOCK = 16
_IN_FLIGHT = (1, 2)
"""Steps that are computed at a time, without asynchronous scheduling and with it."""
_EVEN = 1.5
"""Ratio of layers of both kinds below which the larger number is the size of a group."""
_LAST_BY_GROUP, _FIRST_BY_REQUEST = (0, 19), (0, 25)
"""Releases whose logs show that tokens are counted by group, and by the longest request."""


@dataclass(frozen=True, slots=True)
class PagedCache:
    """vLLM's cache on one card, which consists of blocks of tokens.

    sizes: sizes of the card's part of the model.
    a_token: bytes of one token's keys and values in one layer.
    longest: tokens of the longest request.
    chunk: tokens that are computed at a time.
    version: release of vLLM.
    """

    sizes: ModelSizes
    a_token: int
    longest: int
    chunk: int
    version: tuple[int, int]

    @property
    def _others(self) -> int:
        """Number of layers that do not store all tokens: with a window, or linear attention."""
        linear = self.sizes.linear
        return len(linear.layers) if linear else self.sizes.windowed

    @property
    def _block(self) -> int:
        """Tokens of a block, whose size must be at least that of a state."""
        state = self.sizes.linear.state_bytes if self.sizes.linear else 0
        return max(round_up(-(-state // self.a_token), BLOCK), BLOCK)

    @property
    def _groups(self) -> tuple[int, int, int]:
        """Layers per group, number of groups that store all tokens, and number of other groups."""
        others = self._others
        whole = self.sizes.layers - others
        if not others or not whole:
            return self.sizes.layers, bool(whole), bool(others)
        few, many = sorted((whole, others))
        size = many if many < _EVEN * few else few
        return size, -(-whole // size), -(-others // size)

    def _blocks(self, longest: int, steps: int) -> int:
        """Return the number of blocks that one request of `longest` tokens takes.

        steps: number of tokens that are computed at a time.
        """
        _, whole, others = self._groups
        seen = min(self.sizes.window - 1 + steps * self.chunk, longest)
        # A state takes a second block if prefixes are cached; this is not known here.
        each = steps if self.sizes.linear else -(-seen // self._block) + 1
        return whole * -(-longest // self._block) + others * each

    def bytes_of(self, longest: int) -> int:
        """Return the bytes of the smallest cache that holds one request of `longest` tokens."""
        blocks = self._blocks(longest, _IN_FLIGHT[1])
        return blocks * self._block * self.a_token * self._groups[0]

    def _pool(self, size: int) -> int:
        """Return the number of blocks in a cache of `size` bytes."""
        return max(size, 0) // (self._block * self.a_token * self._groups[0])

    def tokens(self, low: int, high: int) -> tuple[int, int]:
        """Return the lowest and highest number of tokens in a cache of `low` to `high` bytes."""
        _, whole, others = self._groups
        if not others:
            return self._pool(low) * self._block, self._pool(high) * self._block
        found = []
        if self.version < _FIRST_BY_REQUEST:
            found += [self._pool(size) // (whole + others) * self._block for size in (low, high)]
        if self.version > _LAST_BY_GROUP:
            requests = zip((low, high), reversed(_IN_FLIGHT), strict=True)
            found += [
                int(self._pool(size) / self._blocks(self.longest, steps) * self.longest)
                for size, steps in requests
            ]
        return min(found), max(found)

    def longest_in(self, size: int) -> int:
        """Return the tokens of the longest request that a cache of `size` bytes holds."""
        blocks, steps = self._pool(size), _IN_FLIGHT[1]
        low, high = 0, self.longest // self._block + 1
        while low < high:  # the number of blocks grows with the length
            middle = (low + high + 1) // 2
            is_held = self._blocks(middle * self._block, steps) <= blocks
            low, high = (middle, high) if is_held else (low, middle - 1)
        return min(low * self._block, self.longest)
