"""Chooses experts for tokens whose scores a phantom device does not know.

Rule: runs in the program's interpreter, loaded by the hook from its path, so only the standard
library is imported.  Every choice is one that a router could make: the experts of a token are
different ones.  A top-k of unknown scores over at most `MOST_EXPERTS` is taken for a router's.
"""

from __future__ import annotations

from typing import Any

__all__ = ["MOST_EXPERTS", "Router"]

MOST_EXPERTS = 1024
"""Scores of one token that may be those of experts; a vocabulary has more."""


class Router:
    """How tokens are spread over experts.

    torch: the program's PyTorch.
    is_skewed: whether all tokens go to the same experts; otherwise each expert gets as many tokens
    as any other, one more or less.
    """

    def __init__(self, torch: Any, *, is_skewed: bool) -> None:
        self.torch = torch
        self.is_skewed = is_skewed

    def choose(self, scores: Any, chosen: Any, dim: int) -> Any:
        """The experts that a top-k gives along `dim`, on the host; None if it is no router's.

        chosen: the indices on the device, of which only the shape is used.
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
