"""Sizes fixed in the source of the allocator, each under a name close to upstream's.

The two that became options keep their defaults here: `large_segment_size_mb` (2.11) replaces
LARGE_BUFFER, `max_non_split_rounding_mb` (2.6) replaces the rounding allowance of the same size.
Source: semantics 1.1.
"""

from __future__ import annotations

from allocsim.units import KIB, MIB

MIN_BLOCK_SIZE = 512
"""kMinBlockSize: the quantum and the minimum of every rounded size."""

SMALL_SIZE = 1 * MIB
"""kSmallSize: the largest rounded size that the small pool serves, inclusive."""

SMALL_BUFFER = 2 * MIB
"""kSmallBuffer: a segment of the small pool; the handle size of its expandable segments."""

LARGE_BUFFER = 20 * MIB
"""kLargeBuffer: the segment of rounded sizes in (SMALL_SIZE, MIN_LARGE_ALLOC)."""

MIN_LARGE_ALLOC = 10 * MIB
"""kMinLargeAlloc: from this rounded size on, inclusive, a request gets a segment of its own."""

ROUND_LARGE = 2 * MIB
"""kRoundLarge: the unit of segments of one's own."""

MAX_REQUEST = 1 << 60
"""One exbibyte: requests of this size and above are refused before anything is looked at."""

UNLIMITED = (1 << 64) - 1
"""SIZE_MAX, which upstream uses for "no max_split_size"."""

N_ROUNDUP_INTERVALS = 16
"""kRoundUpPowerOfTwoIntervals: below 2 MiB, [2, 4) MiB, ... up to 32 GiB and above."""

ROUNDUP_FIRST_BIT = 20
"""log2 of the lower end of the first interval, 1 MiB."""

PAGE = 2048 * KIB
"""What the driver hands out memory and addresses in."""
