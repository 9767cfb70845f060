"""Hash table that iterates in the order of upstream's, which is part of the rules (12.1).

Fibonacci hashing, robin-hood displacement, no wrap-around, and a bucket count that only grows.
Streams, stream sets of blocks and freeable pools are in such tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Table", "stream_hash", "pool_hash"]

V = TypeVar("V")
_GOLDEN = 11400714819323198485


def stream_hash(device: int) -> Callable[[int], int]:
    """Return the hash of a raw stream handle on CUDA device `device` (semantics 2.3)."""
    return lambda handle: (1 << 56) | (device << 48) | (handle % (1 << 48))


def pool_hash(number: int) -> int:
    """Return the hash of the pool id (0, number) (semantics 12.2)."""
    return number


class Table(Generic[V]):
    """Map from int to `V` that iterates in the order of upstream's hash map."""

    def __init__(self, hash_of: Callable[[int], int]) -> None:
        self.hash_of = hash_of
        self._buckets = 0
        self._entries: list[tuple[int, int, V] | None] = []  # (distance, key, value)

    def __len__(self) -> int:
        return sum(entry is not None for entry in self._entries)

    def __contains__(self, key: int) -> bool:
        return any(entry is not None and entry[1] == key for entry in self._entries)

    def __getitem__(self, key: int) -> V:
        for entry in self._entries:
            if entry is not None and entry[1] == key:
                return entry[2]
        raise KeyError(key)

    def __iter__(self) -> Iterator[int]:
        return iter([entry[1] for entry in self._entries if entry is not None])

    def insert(self, key: int, value: V) -> None:
        """Add `key` unless it is present."""
        if key in self:
            return
        count = len(self)
        while True:
            spot = self._landing(key)
            if spot is not None and 2 * (count + 1) <= self._buckets:
                break
            self._grow()
        landing, distance = spot
        index = landing
        carried = (distance, key, value)
        while (met := self._entries[index]) is not None:
            if met[0] < carried[0]:
                self._entries[index], carried = carried, met
            index += 1
            carried = (carried[0] + 1, carried[1], carried[2])
            if carried[0] == self._limit():
                # The carried key replaces the new key, which is inserted after the growth.
                self._entries[landing] = carried
                self._grow()
                self.insert(key, value)
                return
        self._entries[index] = carried

    def _limit(self) -> int:
        return max(4, self._buckets.bit_length() - 1)

    def _slot(self, key: int) -> int:
        shift = 64 - (self._buckets.bit_length() - 1)
        return ((_GOLDEN * self.hash_of(key)) % (1 << 64)) >> shift

    def _landing(self, key: int) -> tuple[int, int] | None:
        """Return the slot where `key` displaces another or lands; None if it is too far."""
        if self._buckets == 0:
            return None
        index, distance = self._slot(key), 0
        while (met := self._entries[index]) is not None and met[0] >= distance:
            index, distance = index + 1, distance + 1
        return None if distance == self._limit() else (index, distance)

    def _grow(self) -> None:
        old = [entry for entry in self._entries if entry is not None]
        self._buckets = max(4, 2 * self._buckets)
        self._entries = [None] * (self._buckets + self._limit())
        for _, key, value in old:
            self.insert(key, value)

    def erase(self, key: int) -> None:
        """Remove `key` and shift the entries behind it towards their slots."""
        keys = [entry[1] if entry is not None else None for entry in self._entries]
        index = keys.index(key)
        self._entries[index] = None
        while index + 1 < len(self._entries):
            follower = self._entries[index + 1]
            if follower is None or follower[0] == 0:
                return
            self._entries[index] = (follower[0] - 1, follower[1], follower[2])
            self._entries[index + 1] = None
            index += 1

    def clear(self) -> None:
        """Remove everything; the bucket count stays."""
        self._entries = [None] * len(self._entries)
