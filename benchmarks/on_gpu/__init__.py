"""Measure a real GPU: cross-check, programs, cases, kernels and driver times."""
