"""Programs with recordings small enough for a hundred replays."""

from __future__ import annotations

import random
from collections.abc import Callable

from allocsim import CachingAllocator
from allocsim.units import KIB, MIB

Program = Callable[[CachingAllocator], object]


def ragged(seed: int, steps: int = 12) -> Program:
    """Record training steps of different lengths, so that no two steps request the same."""

    def program(gpu: CachingAllocator) -> None:
        rng = random.Random(seed)
        weights = [gpu.malloc(rng.choice([300 * KIB, 3 * MIB, 7 * MIB, 24 * MIB, 150 * MIB]))]
        weights += [gpu.malloc(rng.randrange(64 * KIB, 9 * MIB)) for _ in range(20)]
        for _ in range(steps):
            length = rng.randrange(200, 1024)
            live = []
            for _ in range(25):
                live.append(gpu.malloc(length * rng.choice([700, 4_096, 12_288, 49_152, 200_000])))
                if rng.random() < 0.3:
                    gpu.free(live.pop(rng.randrange(len(live))))
            for block in live:
                gpu.free(block)

    return program
