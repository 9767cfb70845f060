"""Figures that others measured on real GPUs, beside what a phantom GPU says of the same program."""
