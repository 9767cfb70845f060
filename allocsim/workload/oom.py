"""Out-of-memory error by fragmentation, in ten calls.

33 MiB of a 60 MiB device are unused, but the largest free block has 9 MiB, so a request of 12 MiB
fails.  No segment can be released, because each has an allocated block.
"""

from __future__ import annotations

from allocsim.recording import Recording
from allocsim.units import MIB
from allocsim.workload.recorder import Recorder

__all__ = ["oom"]


def oom(*, device_memory: int | str = "60MiB", conf: str = "") -> Recording:
    """Allocate six blocks of 9 MiB in three segments, free every other block, request 12 MiB."""
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
