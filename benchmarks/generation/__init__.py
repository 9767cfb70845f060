"""Comparison of the formula for image generators with real diffusers and with published figures."""
