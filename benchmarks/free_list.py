"""Measure two containers for the free blocks of one stream: a sorted list and a SortedList.

    python -m benchmarks.free_list

Prints the time of one insertion and one removal at several sizes.  The keys are those of the pool:
one integer made of size and address.  The plain list has a parallel list of the blocks, the
SortedList a dictionary.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from statistics import median

from sortedcontainers import SortedList

SIZES = (100, 1_000, 3_000, 5_000, 20_000)
MOVES = 20_000
RUNS = 5


def keys(count: int, seed: int) -> list[int]:
    """Return keys like those of free blocks of 512 bytes to 64 MiB."""
    rng = random.Random(seed)
    return [(rng.randrange(1, 1 << 17) << 38) + rng.randrange(1 << 38) for _ in range(count)]


def time_list(start: list[int], moves: list[int]) -> float:
    """Return the microseconds per move with a plain sorted list."""
    held = sorted(start)
    beside = held.copy()
    begin = time.perf_counter()
    for key in moves:
        at = bisect_left(held, key)
        held.insert(at, key)
        beside.insert(at, key)
        at = bisect_left(held, key)
        del held[at]
        del beside[at]
    return (time.perf_counter() - begin) / len(moves) * 1e6


def time_sorted_list(start: list[int], moves: list[int]) -> float:
    """Return the microseconds per move with a SortedList."""
    held = SortedList(start)
    beside = {key: key for key in start}
    begin = time.perf_counter()
    for key in moves:
        held.add(key)
        beside[key] = key
        held.remove(key)
        del beside[key]
    return (time.perf_counter() - begin) / len(moves) * 1e6


def main() -> None:
    """Print the table."""
    print("| free blocks | list and bisect, µs | SortedList, µs |")
    print("|---|---|---|")
    for size in SIZES:
        start, moves = keys(size, 1), keys(MOVES, 2)
        plain = median(time_list(start, moves) for _ in range(RUNS))
        tree = median(time_sorted_list(start, moves) for _ in range(RUNS))
        print(f"| {size:,} | {plain:.2f} | {tree:.2f} |")


if __name__ == "__main__":
    main()
