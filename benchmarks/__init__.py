"""Benchmarks of the model, and of the real allocator if its library is in the cache."""
