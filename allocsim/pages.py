"""The memory of freed columns, which the next ones are to have.

Rule: what is done here changes how long things take, and nothing else.
"""

from __future__ import annotations

from functools import cache

import numpy as np

__all__ = ["keep_pages"]

_LONGEST = (32 << 20) - (1 << 13)
"""Bytes of the longest array by which glibc measures, with room for its own words."""


@cache
def keep_pages() -> None:
    """Let the C library keep the memory of freed columns for those to come, up to 64 MiB.

    glibc gives what is free at the end of its heap back to the kernel when it is more than twice
    the longest array freed so far (32 MiB at most), and the kernel clears every page that it hands
    out again: a fifth of the first replay of a recording with the compiled core, a twentieth in
    plain Python, whose columns are a few MiB each (benchmarks/results/speed.md).  So one as long
    as counts is freed that nobody has touched, which takes no time and no memory; what other C
    libraries do is not changed by it.
    """
    np.empty(_LONGEST, dtype=np.uint8)
