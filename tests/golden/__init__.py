"""Recorded behaviour of seven PyTorch releases, and a runner that compares allocators with it."""
