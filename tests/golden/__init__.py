"""What seven PyTorch releases really did, and a runner that holds any allocator against it."""
