"""Number of tokens that vLLM's cache holds, for models with and without sliding windows.

Rule: the cache consists of blocks of 16 tokens. Layers of one kind are divided into groups of equal
size; a group's block holds the tokens of all its layers, and all groups take blocks from one pool.
A layer with a window of w tokens holds at most w - 1 tokens and those that are being computed. The
printed number of tokens is the number of longest requests that fit, times their length. Source:
vLLM 0.33, `get_kv_cache_capacity`, `SlidingWindowSpec` and the grouping of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.fitting.formulas.sizes import ModelSizes

BLOCK = 16
_IN_FLIGHT = (1, 2)
"""Steps that are computed at a time, without asynchronous scheduling and with it."""
_EVEN = 1.5
"""Ratio of layers of both kinds below which the larger number is the size of a group."""


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Cache of one card.

    sizes: sizes of the card's part of the model.
    a_token: bytes of one token's keys and values in one layer.
    longest: tokens of the longest request.
    chunk: tokens that are computed at a time.
    """

    sizes: ModelSizes
    a_token: int
    longest: int
    chunk: int

    @property
    def _groups(self) -> tuple[int, int, int]:
        """Layers of a group, groups of layers without a window, and groups with one."""
        windowed = self.sizes.windowed
        whole = self.sizes.layers - windowed
        if not windowed or not whole:
            return self.sizes.layers, bool(whole), bool(windowed)
        few, many = sorted((whole, windowed))
        size = many if many < _EVEN * few else few
        return size, -(-whole // size), -(-windowed // size)

    def _blocks(self, longest: int, steps: int) -> int:
        """Return the blocks of one request of `longest` tokens."""
        _, whole, windowed = self._groups
        seen = min(self.sizes.window - 1 + steps * self.chunk, longest)
        in_windows = -(-seen // BLOCK) + 1 if windowed else 0
        return whole * -(-longest // BLOCK) + windowed * in_windows

    def bytes_of(self, longest: int) -> int:
        """Return the bytes of a pool that holds one request of `longest` tokens."""
        return self._blocks(longest, _IN_FLIGHT[1]) * BLOCK * self.a_token * self._groups[0]

    def _pool(self, size: int) -> int:
        """Return the number of blocks in a pool of `size` bytes."""
        return max(size, 0) // (BLOCK * self.a_token * self._groups[0])

    def tokens(self, low: int, high: int) -> tuple[int, int]:
        """Return the lowest and highest number of tokens in a pool of `low` to `high` bytes."""
        if not self.sizes.windowed:
            return self._pool(low) * BLOCK, self._pool(high) * BLOCK
        few, many = (
            int(self._pool(size) / self._blocks(self.longest, steps) * self.longest)
            for size, steps in zip((low, high), reversed(_IN_FLIGHT), strict=True)
        )
        return few, many

    def longest_in(self, size: int) -> int:
        """Return the tokens of the longest request that a pool of `size` bytes holds."""
        blocks, steps = self._pool(size), _IN_FLIGHT[1]
        low, high = 0, self.longest // BLOCK + 1
        while low < high:  # the number of blocks grows with the length
            middle = (low + high + 1) // 2
            is_held = self._blocks(middle * BLOCK, steps) <= blocks
            low, high = (middle, high) if is_held else (low, middle - 1)
        return min(low * BLOCK, self.longest)
