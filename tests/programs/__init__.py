"""Programs recorded with real PyTorch on the phantom GPU."""
