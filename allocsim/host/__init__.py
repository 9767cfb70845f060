"""Exact model of PyTorch's caching allocator of pinned host memory.

Blocks are never split or merged.  A request is rounded up to a power of two; it takes a free block
of that size, or else a new block from the driver.  Source: semantics 13.
"""

from allocsim.host.allocator import CachingHostAllocator
from allocsim.host.recorded import Growth, GrowthCause, HostCourse, follow, state_after

__all__ = ["CachingHostAllocator", "Growth", "GrowthCause", "HostCourse", "follow", "state_after"]
