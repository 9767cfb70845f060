"""Setting of the C library, for speed only: keep freed array memory in the process."""

from __future__ import annotations

from functools import cache

import numpy as np

_LONGEST = (32 << 20) - (1 << 13)
"""Size in bytes of the largest array that raises glibc's threshold, less its bookkeeping."""


@cache
def keep_pages() -> None:
    """Make glibc keep up to 64 MiB of freed memory.

    glibc returns free memory at the end of its heap to the kernel when it exceeds twice the size of
    the largest array freed so far (at most 32 MiB), and the kernel clears every page that it maps
    again.  That took a fifth of the first replay of a recording with the compiled core, and a
    twentieth in plain Python (benchmarks/results/speed.md).  Allocating and freeing an untouched
    array of the maximal size raises the threshold at no cost.  Other C libraries are unaffected.
    """
    np.empty(_LONGEST, dtype=np.uint8)
