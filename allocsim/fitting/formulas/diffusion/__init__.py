"""Memory of image generation by diffusers, simulated on the allocator model."""

from allocsim.fitting.formulas.diffusion.pipeline import DrawingWork, Drawn, ImagePipeline, draw

__all__ = ["DrawingWork", "Drawn", "ImagePipeline", "draw"]
