"""The order of upstream's hash maps (semantics 2.3, 12.1, 12.2)."""

from __future__ import annotations

import random

import pytest

from allocsim.core.block import Block
from allocsim.core.hash_order import HashOrder, pool_hash, stream_hash
from allocsim.core.pending import EventQueues
from allocsim.core.pool import BlockPool, KeyLayout

GOLDEN = 11400714819323198485


class Table:
    """Table with the wording of 12.1: B + L entries, L = max(4, log2 B), no wrap-around."""

    def __init__(self) -> None:
        self.buckets = 0
        self.entries: list[tuple[int, int] | None] = []

    def slot(self, key: int) -> int:
        return (GOLDEN * key % 2**64) >> (64 - (self.buckets.bit_length() - 1))

    def insert(self, key: int) -> None:
        if self.buckets:
            i, d = self.slot(key), 0
            while (entry := self.entries[i]) is not None and entry[0] >= d:
                if entry[1] == key:
                    return
                i, d = i + 1, d + 1
            n = sum(entry is not None for entry in self.entries)
            if d != self.extra and 2 * (n + 1) <= self.buckets:
                displaced = i
                carried: tuple[int, int] | None = (d, key)
                while carried is not None:
                    met = self.entries[i]
                    if met is None or met[0] < carried[0]:
                        self.entries[i], carried = carried, met
                    i += 1
                    carried = carried and (carried[0] + 1, carried[1])
                    if carried and carried[0] == self.extra:
                        self.entries[displaced] = carried
                        break
                else:
                    return
        keys = [entry[1] for entry in self.entries if entry is not None]
        self.buckets = max(4, 2 * self.buckets)
        self.entries = [None] * (self.buckets + self.extra)
        for old in [*keys, key]:
            self.insert(old)

    @property
    def extra(self) -> int:
        return max(4, self.buckets.bit_length() - 1)

    def erase(self, key: int) -> None:
        i = next(i for i, entry in enumerate(self.entries) if entry and entry[1] == key)
        self.entries[i] = None
        while i + 1 < len(self.entries) and (moved := self.entries[i + 1]) and moved[0] > 0:
            self.entries[i], self.entries[i + 1] = (moved[0] - 1, moved[1]), None
            i += 1

    def keys(self) -> list[int]:
        return [entry[1] for entry in self.entries if entry is not None]


def plain(key: int) -> int:
    return key


@pytest.mark.parametrize("seed", range(40))
def test_walks_in_the_order_of_the_table(seed: int) -> None:
    rng = random.Random(seed)
    order: HashOrder[int, str] = HashOrder(plain)
    table = Table()
    universe = [rng.randrange(1, 1 << rng.choice((3, 12, 48))) for _ in range(30)]
    for _ in range(200):
        key = rng.choice(universe)
        if key in order and rng.random() < 0.7:
            del order[key]
            table.erase(key)
        elif key not in order:
            order[key] = str(key)
            table.insert(key)
        assert list(order) == table.keys()
    assert all(order[key] == str(key) for key in order)
    assert len(order) == len(table.keys())


@pytest.mark.parametrize("seed", range(40))
def test_walks_in_the_order_of_the_table_after_an_insertion_that_overflows(seed: int) -> None:
    """Keys with neighbouring slots, so that displaced keys come too far from their slots."""
    rng = random.Random(seed)
    order: HashOrder[int, None] = HashOrder(plain)
    table = Table()
    while len(order) < 8:
        key = rng.randrange(1, 1 << 48)
        if (GOLDEN * key % 2**64) >> 60 in (5, 6, 7) and key not in order:
            order[key] = None
            table.insert(key)
            assert list(order) == table.keys()


def test_an_entry_can_be_changed_in_place() -> None:
    order: HashOrder[int, str] = HashOrder(plain)
    order[5] = "a"
    order[5] = "b"
    assert (order[5], order.get(5), order.get(6), list(order)) == ("b", "b", None, [5])
    with pytest.raises(KeyError):
        order[6]


def test_streams_hash_with_their_device() -> None:
    assert stream_hash(0)(0) == 1 << 56
    assert stream_hash(0)(4096) == 1 << 56 | 4096
    assert stream_hash(3)(4096) == 1 << 56 | 3 << 48 | 4096
    assert stream_hash(0)(1 << 48 | 7) == 1 << 56 | 7


def test_pools_hash_by_their_first_number_that_is_not_0() -> None:
    assert pool_hash((0, 7)) == 7
    assert pool_hash((5, 0)) == 5


def test_an_emptied_queue_is_erased() -> None:
    pool = BlockPool(True, KeyLayout())
    first, second = (Block(ptr, 512, 0, pool, 0) for ptr in (0, 512))
    queues = EventQueues(stream_hash(0))
    queues.push(1, 1, first)
    queues.push(2, 1, first)
    queues.push(2, 2, second)
    assert len(queues) == 2
    for stream, queue in queues.walk():
        queue.popleft()
        assert stream in (1, 2)
    assert [stream for stream, _ in queues.walk()] == [2]


@pytest.mark.parametrize("displaced", [False, True])
def test_a_table_grows_before_a_key_lies_too_far_from_its_slot(displaced: bool) -> None:
    """Observed on 2.1.2, 2.8.0, 2.15.0: handles of streams that share a slot among 16 buckets.

    The fifth key of a slot, or the fourth after displacement, would be four places away.
    """
    streams = [9, 24, 39, 54, 11, 26] if displaced else [11, 26, 41, 73, 88]
    walked = [11, 26, 9, 24, 39, 54] if displaced else [73, 88, 26, 41, 11]
    order: HashOrder[int, None] = HashOrder(stream_hash(0))
    for stream in streams:
        order[stream * 4096] = None
    assert [handle // 4096 for handle in order] == walked
