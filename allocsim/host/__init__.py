"""Exact model of PyTorch's caching allocator of pinned host memory.

Blocks are never split or merged: a request is rounded up to a power of two and takes a free block
of that size, or a new one from the driver.  Source: semantics 13.
"""

from allocsim.host.allocator import CachingHostAllocator

__all__ = ["CachingHostAllocator"]
