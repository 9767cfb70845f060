"""Comparison of replays, what-ifs and the phantom with recordings of a real card."""
