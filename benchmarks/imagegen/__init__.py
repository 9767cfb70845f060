"""Comparison of peaks predicted without a GPU with peaks that others measured."""
