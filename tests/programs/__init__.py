"""Real programs, recorded by real PyTorch over the GPU that is not there."""
