"""Choice of experts for tokens whose scores a phantom device does not know.

Rule: this file runs in the program's interpreter, loaded by the hook from its path, so it imports
only the standard library.  Every choice is possible for a real router: the experts of a token are
distinct.  A top-k of unknown scores over at most `MOST_EXPERTS` entries is assumed to be a router.
"""

from __future__ import annotations

from typing import Any

__all__ = ["MOST_EXPERTS", "Router"]

MOST_EXPERTS = 1024
"""Largest number of scores per token that may belong to experts; a vocabulary has more."""


class Router:
    """Distribution of tokens over experts.

    torch: the program's PyTorch.
    is_skewed: True if all tokens go to the same experts; otherwise the numbers of tokens per expert
        differ by at most one.
    """

    def __init__(self, torch: Any, *, is_skewed: bool) -> None:
        self.torch = torch
        self.is_skewed = is_skewed

    def choose(self, scores: Any, chosen: Any, dim: int) -> Any:
        """Return the indices that a top-k along `dim` selects, on the host; None if not a router's.

        chosen: indices on the device; only their shape is used.
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
