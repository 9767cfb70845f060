"""Hash map with the iteration order of upstream's ska::flat_hash_map.

Upstream iterates over such maps to poll event queues and to release private pools, so their order
shows in the history.  Keys are put into slots by Fibonacci hashing.  The number of slots is a power
of two, at least 4, and at most half of them are full.  Collisions are resolved by robin-hood
displacement without wrap-around.  Iteration starts at slot 0.  Erasing a key shifts the displaced
keys behind it back by one slot.  Source: semantics 2.3, 12.1, 12.2.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

_GOLDEN = 11400714819323198485  # 2**64 divided by the golden ratio, as in upstream
_WORD = (1 << 64) - 1
_STREAM_ID = (1 << 48) - 1
_MIN_SLOTS = 4
_CUDA = 1  # c10::DeviceType::CUDA

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def stream_hash(device: int) -> Callable[[int], int]:
    """Return the hash function for raw stream handles (0: default stream) of a device."""
    high = _CUDA << 56 | device << 48
    return lambda stream: high | stream & _STREAM_ID


def pool_hash(pool_id: tuple[int, int]) -> int:
    return pool_id[0] or pool_id[1]


class HashOrder(Generic[K, V]):
    """Map that iterates over its keys in the order of upstream's hash table.

    Mirrors: ska::flat_hash_map
    """

    __slots__ = ("_hash", "_bits", "_slots", "_values")

    def __init__(self, hash_of: Callable[[K], int]) -> None:
        self._hash = hash_of
        self._bits = 0
        self._slots: list[tuple[int, K] | None] = []  # (distance from the slot of its hash, key)
        self._values: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __getitem__(self, key: K) -> V:
        return self._values[key]

    def __iter__(self) -> Iterator[K]:
        # Over a copy, because callers erase keys meanwhile.
        return iter([slot[1] for slot in self._slots if slot is not None])

    def get(self, key: K) -> V | None:
        return self._values.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self._values:
            while not self._place(key):
                self._grow()
        self._values[key] = value

    def __delitem__(self, key: K) -> None:
        del self._values[key]
        i = self._slot(key)
        while (slot := self._slots[i]) is None or slot[1] != key:
            i += 1
        self._slots[i] = None
        # The last slot is always empty, so the shift ends.
        while (slot := self._slots[i + 1]) is not None and slot[0] > 0:
            self._slots[i], self._slots[i + 1] = (slot[0] - 1, slot[1]), None
            i += 1

    def _slot(self, key: K) -> int:
        return (_GOLDEN * self._hash(key) & _WORD) >> (64 - self._bits)

    def _place(self, key: K) -> bool:
        # Returns False if the table must grow first.
        n_buckets = 1 << self._bits
        if 2 * (len(self._values) + 1) > n_buckets:
            return False
        carried = (0, key)
        i = self._slot(key)
        first_displaced = None
        longest = len(self._slots) - n_buckets
        while (slot := self._slots[i]) is not None:
            if slot[0] < carried[0]:
                if first_displaced is None:
                    first_displaced = i
                self._slots[i], carried = carried, slot
            i += 1
            carried = (carried[0] + 1, carried[1])
            if carried[0] == longest:
                # The key carried now takes the slot of the first displaced key, and `key` leaves
                # the table.  The other keys stay where they moved, so growth reinserts all keys in
                # another order.
                if first_displaced is not None:
                    self._slots[first_displaced] = carried
                return False
        self._slots[i] = carried
        return True

    def _grow(self) -> None:
        # Keys are reinserted in table order, which decides their places in the new table.
        keys = list(self)
        self._bits = max(_MIN_SLOTS.bit_length() - 1, self._bits + 1)
        # The slots behind the last hash value take displaced keys.
        self._slots = [None] * ((1 << self._bits) + max(_MIN_SLOTS, self._bits))
        values, self._values = self._values, {}
        for key in keys:
            self[key] = values[key]
