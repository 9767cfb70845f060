"""Sizes fixed in PyTorch's source, each under a name close to PyTorch's.

LARGE_BUFFER is also the default of two options: large_segment_size_mb (from PyTorch 2.11 on) and
max_non_split_rounding_mb (from PyTorch 2.6 on).  All constants are Final, so that the compiled form
of the core uses them as numbers.  Source: semantics 1.1.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from allocsim.units import GIB, KIB, MIB

MIN_BLOCK_SIZE: Final = 512
"""kMinBlockSize: smallest rounded size; other rounded sizes are multiples of it."""

SMALL_SIZE: Final = 1 * MIB
"""kSmallSize: the largest rounded size in the small pool."""

SMALL_BUFFER: Final = 2 * MIB
"""kSmallBuffer: size of small segments, and of the handles of small expandable segments."""

LARGE_BUFFER: Final = 20 * MIB
"""kLargeBuffer: segment size for rounded sizes above SMALL_SIZE and below MIN_LARGE_ALLOC."""

MIN_LARGE_ALLOC: Final = 10 * MIB
"""kMinLargeAlloc: the smallest rounded size that gets a separate segment."""

ROUND_LARGE: Final = 2 * MIB
"""kRoundLarge: multiple to which separate segments are rounded."""

MAX_REQUEST: Final = 1 << 60
"""One exbibyte: a request of this size or more fails before any search."""

UNLIMITED: Final = (1 << 64) - 1
"""SIZE_MAX: PyTorch's value of max_split_size if the option is not set."""

UNLIMITED_DEVICE: Final = 1 << 60
"""Bytes of a device whose memory has no limit."""

LARGEST_CARD: Final = 448 * GIB
"""More bytes than any card has; used as the card's memory if the device has no limit."""

N_ROUNDUP_INTERVALS: Final = 16
"""kRoundUpPowerOfTwoIntervals: number of values of roundup_power2_divisions, one for each range of
request sizes: below 2 MiB, [2, 4) MiB, and so on; the last is from 32 GiB up."""

ROUNDUP_FIRST_BIT: Final = 20
"""log2 of 1 MiB: value i of roundup_power2_divisions is for sizes of 2**i to 2**(i + 1) MiB."""

PAGE: Final = 2048 * KIB
"""Bytes of a page; the driver allocates memory and addresses in pages."""

ADDRESS_CHUNK: Final = 32 * MIB
"""Unit of the addresses that the CUDA driver reserves for cudaMalloc."""

DRIVER_TOP: Final = 0x7F00_0000_0000
"""Default address below which the first cudaMalloc is placed, with the address policy "driver"."""

DRIVER_RANGES: Final = 0x3_0200_0000
"""First address that cuMemAddressReserve returns on Linux, as in all recordings of the H200."""

IS_COMPILED: Final = find_spec("allocsim.core._columns") is not None
"""True if Cython compiled this core.  Some code is faster in one form and slower in the other."""
