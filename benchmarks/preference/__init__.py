"""Predictions of the memory of DPO, compared with TRL over a phantom GPU."""
