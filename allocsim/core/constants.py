"""Sizes fixed in the source of the allocator, each under a name close to upstream's.

The two that became options keep their defaults here: `large_segment_size_mb` (2.11) replaces
LARGE_BUFFER, `max_non_split_rounding_mb` (2.6) replaces the rounding allowance of the same size.
Final, so that the compiled form of the core takes them as numbers; `IS_COMPILED` tells which form
is running.  Source: semantics 1.1.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from allocsim.units import GIB, KIB, MIB

MIN_BLOCK_SIZE: Final = 512
"""kMinBlockSize: the quantum and the minimum of every rounded size."""

SMALL_SIZE: Final = 1 * MIB
"""kSmallSize: the largest rounded size that the small pool serves, inclusive."""

SMALL_BUFFER: Final = 2 * MIB
"""kSmallBuffer: a segment of the small pool; the handle size of its expandable segments."""

LARGE_BUFFER: Final = 20 * MIB
"""kLargeBuffer: the segment of rounded sizes in (SMALL_SIZE, MIN_LARGE_ALLOC)."""

MIN_LARGE_ALLOC: Final = 10 * MIB
"""kMinLargeAlloc: from this rounded size on, inclusive, a request gets a segment of its own."""

ROUND_LARGE: Final = 2 * MIB
"""kRoundLarge: the unit of segments of one's own."""

MAX_REQUEST: Final = 1 << 60
"""One exbibyte: requests of this size and above are refused before anything is looked at."""

UNLIMITED: Final = (1 << 64) - 1
"""SIZE_MAX, which upstream uses for "no max_split_size"."""

UNLIMITED_DEVICE: Final = 1 << 60
"""Bytes of a device that stands for one without end."""

LARGEST_CARD: Final = 448 * GIB
"""Memory that no card has yet; what depends on a card's memory is this one's without an end."""

N_ROUNDUP_INTERVALS: Final = 16
"""kRoundUpPowerOfTwoIntervals: below 2 MiB, [2, 4) MiB, ... up to 32 GiB and above."""

ROUNDUP_FIRST_BIT: Final = 20
"""log2 of the lower end of the first interval, 1 MiB."""

PAGE: Final = 2048 * KIB
"""What the driver hands out memory and addresses in."""

ADDRESS_CHUNK: Final = 32 * MIB
"""Multiple in which the CUDA driver reserves addresses for cudaMalloc."""

DRIVER_TOP: Final = 0x7F00_0000_0000
"""Default end of the addresses that the "driver" policy uses."""

DRIVER_RANGES: Final = 0x3_0200_0000
"""First address of cuMemAddressReserve on Linux, as in all recordings of the H200."""

IS_COMPILED: Final = find_spec("allocsim.core._columns") is not None
"""Whether Cython has compiled this core: what is quicker in one form is slower in the other."""
