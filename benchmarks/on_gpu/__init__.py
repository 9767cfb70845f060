"""One command that measures a card: cross-check, programs, cases, kernels and driver times."""
