"""Fragmentation: short-lived blocks between long-lived blocks.

Freed short-lived blocks leave holes between long-lived blocks.  Each round requests slightly larger
sizes than the holes of the round before, so half-empty segments accumulate.
"""

from __future__ import annotations

import random
from collections import deque

from allocsim.recording import Recording
from allocsim.units import MIB, parse_size
from allocsim.workload.recorder import Recorder

_FILE = "pipeline.py"


def fragments(
    *,
    rounds: int = 20,
    blocks: int = 40,
    life: int = 3,
    block_size: int | str = "2MiB",
    growth: int = 5,
    seed: int = 0,
    device_memory: int | str = "24GiB",
    conf: str = "",
    entries: int | None = None,
) -> Recording:
    """Simulate interleaved lifetimes that cause fragmentation.

    rounds: number of rounds.
    blocks: number of pairs that a round allocates: a block that is freed at the end of the round,
        and a block that lives for `life` more rounds.
    block_size: approximate bytes of the first round's short-lived blocks.  Long-lived blocks have
        between a quarter of it and all of it.
    growth: percent by which short-lived blocks grow per round.  At a factor of eight they restart
        with the first size.
    entries: number of entries to generate, in place of `rounds`.
    """
    options = dict(locals())
    base = parse_size(block_size)
    chance = random.Random(seed)
    recorder = Recorder(device_memory, conf)
    short = recorder.code(_FILE, "preprocess", 18)
    stays = recorder.code(_FILE, "collect_result", 27)
    drop = recorder.code(_FILE, "drop_results", 33)
    results: deque[list[int]] = deque()
    factor = 1.0
    with recorder.program():
        for _ in recorder.rounds(rounds, entries):
            young, old = [], []
            for _ in range(blocks):
                size = int(base * factor * chance.uniform(0.9, 1.0))
                young.append(recorder.malloc(max(size, 1), short))
                old.append(recorder.malloc(max(chance.randint(base // 4, base), 1), stays))
            for block in young:
                recorder.free(block, short)
            results.append(old)
            if len(results) > life:
                for block in results.popleft():
                    recorder.free(block, drop)
            factor = factor * (1 + growth / 100) if factor < 8 else 1.0
    return recorder.recording("fragments", options)


def oom(*, device_memory: int | str = "60MiB", conf: str = "") -> Recording:
    """Simulate an out-of-memory error by fragmentation, in ten calls.

    Six blocks of 9 MiB fill three segments, and every other block is freed.  On 60 MiB, 33 MiB are
    unused then, but the largest free block has 9 MiB, so a request of 12 MiB fails.  No segment can
    be released, because each has an allocated block.
    """
    options = dict(locals())
    recorder = Recorder(device_memory, conf)
    make = recorder.code("classic.py", "make", 4)
    drop = recorder.code("classic.py", "drop_every_other", 8)
    want = recorder.code("classic.py", "want_more", 11)
    with recorder.program():
        blocks = [recorder.malloc(9 * MIB, make) for _ in range(6)]
        for block in blocks[::2]:
            recorder.free(block, drop)
        recorder.malloc(12 * MIB, want)
    return recorder.recording("oom", options)
