"""A second, slow reading of the allocator's rules, to hold the core against."""
