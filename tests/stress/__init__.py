"""Random scripts on two allocators at once, run by `make stress`."""
