"""Comparison of memory that others measured on real GPUs with predictions over a phantom GPU."""
