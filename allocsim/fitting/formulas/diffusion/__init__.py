"""Memory of image generation by diffusers, simulated on the allocator model."""

from allocsim.fitting.formulas.diffusion.pipeline import DrawingWork, Drawn, draw, network_weights

__all__ = ["DrawingWork", "Drawn", "draw", "network_weights"]
