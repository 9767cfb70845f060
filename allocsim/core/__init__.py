"""The exact model: one device's caching allocator, in the standard library and sortedcontainers.

Read in this order: constants, releases (what changed when), config, block, pool, heap (split,
merge, segments), allocator (the order of attempts), reclaim, private_pools.  Nothing here reads
a clock, a file, the environment or a random source, and nothing prints.
"""

from allocsim.core.allocator import CachingAllocator
from allocsim.core.block import Block
from allocsim.core.config import AllocatorConfig
from allocsim.core.constants import IS_COMPILED
from allocsim.core.device import ADDRESS_POLICIES, Device
from allocsim.core.fast_path import FREE, FREE_COMPLETED, FREE_REQUESTED, MALLOC, PlainStep
from allocsim.core.heap import TraceEntry as HistoryEntry
from allocsim.core.option_string import parse as parse_conf
from allocsim.core.pending import ToldFree
from allocsim.core.releases import NEWEST, RELEASES, Release, find_release
from allocsim.core.seed import SeedBlock, SeedSegment

__all__ = [
    "ADDRESS_POLICIES",
    "AllocatorConfig",
    "Block",
    "CachingAllocator",
    "Device",
    "FREE",
    "FREE_COMPLETED",
    "FREE_REQUESTED",
    "HistoryEntry",
    "IS_COMPILED",
    "MALLOC",
    "NEWEST",
    "PlainStep",
    "RELEASES",
    "Release",
    "SeedBlock",
    "SeedSegment",
    "ToldFree",
    "find_release",
    "parse_conf",
]
