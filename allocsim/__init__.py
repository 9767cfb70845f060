"""A bit-exact model of PyTorch's CUDA caching allocator."""

from allocsim.core import CachingAllocator
from allocsim.errors import OutOfMemoryError

__all__ = ["CachingAllocator", "OutOfMemoryError"]
