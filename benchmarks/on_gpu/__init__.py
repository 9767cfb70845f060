"""Measurement of a card: cross-check, programs, cases, kernels and driver times."""
