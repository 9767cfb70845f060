"""Comparison of figures that others measured on real GPUs with those of a phantom GPU."""
