"""Derivation of `allocsim/laws/data` from recordings of real PyTorch over a phantom GPU."""
