"""Write the blocks of a device as a problem for MiniMalloc, a packer of buffers.

Times are entry numbers, and a buffer is live in [lower, upper), as MiniMalloc defines it.  Sizes
are requests rounded up to 512 bytes.  Blocks from before the first entry begin at 0, so entry n is
time n + 1.  The id of a buffer is the entry of its request.
"""

from __future__ import annotations

import io
from typing import BinaryIO

from allocsim.errors import RecordingError
from allocsim.metrics import lifetimes_of
from allocsim.recording import Recording

__all__ = ["write_minimalloc"]


def write_minimalloc(recording: Recording, file: BinaryIO) -> None:
    """Write CSV with the columns id, lower, upper, size.

    Raises RecordingError for a recording of several devices.
    """
    trace = recording.only_device()
    if not len(trace):
        raise RecordingError(recording.path, "holds no entries, and so no lives to pack")
    lives = lifetimes_of(trace)
    text = io.StringIO()
    text.write("id,lower,upper,size\n")
    rows = zip(lives.start.tolist(), lives.end.tolist(), lives.size.tolist(), strict=True)
    for number, (start, end, size) in enumerate(sorted(rows)):
        name = start if start >= 0 else f"before-{number}"
        text.write(f"{name},{start + 1},{end + 1},{size}\n")
    file.write(text.getvalue().encode())
