"""Tests of the allocator of pinned host memory."""
