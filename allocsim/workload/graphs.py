"""CUDA graphs, each captured into a private pool, followed by work outside of graphs.

The free blocks of a private pool serve requests of its graph only, and empty_cache does not release
them until the graph is deleted.
"""

from __future__ import annotations

import random

from allocsim.recording import Recording
from allocsim.units import parse_size
from allocsim.workload.recorder import Recorder

_FILE = "graphed.py"


def graphs(
    *,
    pools: int = 4,
    tensors: int = 12,
    tensor_size: int | str = "8MiB",
    rounds: int = 20,
    seed: int = 0,
    device_memory: int | str = "24GiB",
    conf: str = "",
    entries: int | None = None,
) -> Recording:
    """Simulate private pools of CUDA graphs.

    pools: number of graphs, each captured into its own pool.
    tensors: number of tensors that a capture allocates.  All but the last are freed within it.
    tensor_size: bytes of the largest tensor; others have at least an eighth of it.
    rounds: number of rounds of work after the captures.  Each allocates and frees `tensors`
        tensors.  Then every other graph is deleted and empty_cache is called.
    entries: number of entries after which the rounds end, in place of `rounds`.
    """
    options = dict(locals())
    largest = parse_size(tensor_size)
    chance = random.Random(seed)
    recorder = Recorder(device_memory, conf)
    allocator = recorder.allocator
    capture = recorder.code(_FILE, "capture", 17)
    eager = recorder.code(_FILE, "eager_step", 32)
    drop = recorder.code(_FILE, "drop_graph", 44)

    def some(code: int) -> list[int]:
        sizes = [chance.randint(max(largest // 8, 1), max(largest, 1)) for _ in range(tensors)]
        return [recorder.malloc(size, code) for size in sizes]

    outputs = {}
    with recorder.program():
        for pool in range(1, pools + 1):
            allocator.begin_allocate_to_pool(pool)
            *temporaries, outputs[pool] = some(capture)
            for block in temporaries:
                recorder.free(block, capture)
            allocator.end_allocate_to_pool(pool)
        for _ in recorder.rounds(rounds, entries):
            for block in some(eager):
                recorder.free(block, eager)
        for pool in list(outputs)[::2]:
            recorder.free(outputs[pool], drop)
            allocator.release_pool(pool)
        allocator.empty_cache()
    return recorder.recording("graphs", options)
