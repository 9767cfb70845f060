"""Derivation of `allocsim/fitting/laws/data` from recordings of real PyTorch over a phantom GPU."""
