"""The laws of `allocsim/laws/data`, taken from recordings of real PyTorch over the phantom GPU."""
