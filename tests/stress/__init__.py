"""Random scripts on two allocators at once; what `make stress` runs."""
