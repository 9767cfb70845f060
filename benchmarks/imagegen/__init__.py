"""Peaks predicted without a GPU, held against what others measured on one."""
