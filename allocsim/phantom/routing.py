"""Choose experts for the tokens of a mixture-of-experts model on a phantom GPU.

A phantom GPU has no scores, so the choice is an assumption.

Rule: this file runs in the program's interpreter, loaded by the hook from its path, so it imports
only the standard library.  The experts of a token are distinct, as in a real model.  A top-k of
unknown scores over at most `MOST_EXPERTS` entries is assumed to be a choice of experts.
"""

from __future__ import annotations

from typing import Any

__all__ = ["MOST_EXPERTS", "Router"]

MOST_EXPERTS = 1024
"""Largest number of scores per token that are assumed to be experts; a vocabulary has more."""


class Router:
    """Assumed distribution of tokens over experts.

    torch: the module torch of the program.
    is_skewed: True if all tokens go to the same experts; else the numbers of tokens per expert
        differ by at most one.
    """

    def __init__(self, torch: Any, *, is_skewed: bool) -> None:
        self.torch = torch
        self.is_skewed = is_skewed

    def choose(self, scores: Any, chosen: Any, dim: int) -> Any:
        """Return the expert numbers that a top-k along `dim` gives, as a host tensor.

        scores: input of the top-k.
        chosen: its indices on the device; only their shape is used.
        Return None if the top-k does not look like a choice of experts.
        """
        if scores.dim() < 2 or dim % scores.dim() != scores.dim() - 1:
            return None
        experts, count = scores.shape[-1], chosen.shape[-1]
        if not 1 <= count < experts <= MOST_EXPERTS:
            return None
        torch = self.torch
        slots = torch.arange(count, device="cpu").expand(chosen.shape)
        if self.is_skewed:
            return slots
        tokens = chosen.numel() // count
        return (torch.arange(tokens * count, device="cpu") % experts).reshape(chosen.shape)
