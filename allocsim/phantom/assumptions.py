"""Replace values that a phantom GPU does not have: experts, end of generation, random numbers.

Rule: this file runs in the program's interpreter, loaded by the hook from its path, so it imports
only the standard library.

Experts: a phantom GPU has no scores, so the experts of a token are an assumption.  They are
distinct, as in a real model.  A top-k of unknown scores over at most `MOST_EXPERTS` entries is
assumed to be a choice of experts.

Generation: `generate()` of transformers reads from the GPU if any sequence is unfinished.  Instead,
it ends when the sequences have the maximum length.

Random numbers: large host tensors are not initialised, to save time.  Adapters of a model with 70
billion parameters have 300 million numbers, and drawing them takes three seconds.  Device tensors
and small host tensors are still filled, because sizes may depend on them.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

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
        """Return assumed expert indices as the result of a top-k along `dim`, as a host tensor.

        A phantom GPU does not compute the scores, so balanced or skewed experts are assumed.
        scores: input of the top-k; only its shape is used.
        chosen: index tensor of the top-k on the device; only its shape is used.
        Returns None if the top-k does not look like a choice of experts.
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


_ASKED = "_has_unfinished_sequences"


def end_at_max_length(module: Any) -> None:
    """Patch `module` so that generation ends after max_new_tokens or at max_length.

    module: transformers.generation.utils; not changed if it lacks the methods to patch.
    """
    criteria = getattr(module, "MaxLengthCriteria", None)
    mixin = getattr(module, "GenerationMixin", None)
    if criteria is None or not hasattr(mixin, _ASKED):
        return
    known = threading.local()
    judge, goes_on = criteria.__call__, getattr(mixin, _ASKED)

    @functools.wraps(judge)
    def judged(self: Any, input_ids: Any, *args: Any, **named: Any) -> Any:
        known.is_done = input_ids.shape[1] >= self.max_length
        return judge(self, input_ids, *args, **named)

    @functools.wraps(goes_on)
    def asked(*args: Any, **named: Any) -> Any:
        if getattr(known, "is_done", False):
            known.is_done = False
            return False
        return goes_on(*args, **named)

    criteria.__call__ = judged
    setattr(mixin, _ASKED, asked)


_LEAST = 1 << 14
"""Number of elements from which on the values of a tensor are assumed not to matter."""


def leave_unfilled(torch: Any) -> None:
    """Patch `torch` so that `uniform_` returns a large host tensor unchanged."""
    fill = torch.Tensor.uniform_

    @functools.wraps(fill)
    def uniform_(tensor: Any, *args: Any, **named: Any) -> Any:
        if tensor.device.type == "cpu" and tensor.numel() >= _LEAST:
            return tensor
        return fill(tensor, *args, **named)

    torch.Tensor.uniform_ = uniform_
