"""A second, slow implementation of the allocator's rules, to compare the core with."""
