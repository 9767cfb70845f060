"""Comparison of `allocsim colocate` with real programs that share one phantom card."""
