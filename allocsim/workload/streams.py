"""Two streams: the default stream fills buffers, a side stream copies them, with record_stream.

A block that is freed while the side stream reads it cannot be reused until the side stream has
finished and a later request has processed the event.  Meanwhile the loop allocates new memory, so
that it reserves several times the memory that it uses at once.
"""

from __future__ import annotations

import random

from allocsim.recording import Recording
from allocsim.units import parse_size
from allocsim.workload.recorder import Recorder

SIDE_STREAM = 4096
"""Raw handle of the side stream."""

_FILE = "overlap.py"


def streams(
    *,
    steps: int = 30,
    buffers: int = 4,
    buffer_size: int | str = "16MiB",
    lag: int = 3,
    seed: int = 0,
    device_memory: int | str = "24GiB",
    conf: str = "",
    entries: int | None = None,
) -> Recording:
    """Simulate computation on the default stream and copies on a side stream.

    steps: number of steps.
    buffers: number of buffers per step.
    buffer_size: bytes of the largest buffer; others have at least half of it.
    lag: number of steps after which the side stream finishes its work.
    entries: number of entries to generate, in place of `steps`.
    """
    options = dict(locals())
    largest = parse_size(buffer_size)
    chance = random.Random(seed)
    recorder = Recorder(device_memory, conf)
    compute = recorder.code(_FILE, "compute", 14)
    stage = recorder.code(_FILE, "copy_stage", 23)
    drop = recorder.code(_FILE, "drop_buffers", 29)
    with recorder.program():
        for step in recorder.rounds(steps, entries):
            if step % max(lag, 1) == 0:
                recorder.allocator.synchronize(SIDE_STREAM)
            staging = recorder.malloc(max(largest // 8, 1), stage, SIDE_STREAM)
            made = []
            for _ in range(buffers):
                size = chance.randint(max(largest // 2, 1), max(largest, 1))
                made.append(recorder.malloc(size, compute))
            for buffer in made:
                recorder.allocator.record_stream(buffer, SIDE_STREAM)
                recorder.free(buffer, drop)
            recorder.free(staging, stage)
    return recorder.recording("streams", options)
