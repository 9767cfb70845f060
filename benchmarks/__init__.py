"""Benchmarks of the model, beside the real allocator where its library is at hand."""
