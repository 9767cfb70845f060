"""Random initialisation of large host tensors skipped where no value matters.

Rule: this file runs in the program's interpreter, loaded by the hook from its path once torch is
loaded, so it imports only the standard library.  Device tensors are left alone, and so are small
tensors, because sizes may depend on them.

Adapters of a model with 70 billion parameters have 300 million numbers, which take three seconds to
draw on the host and are all zero on a phantom anyway.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["leave_unfilled"]

_LEAST = 1 << 14
"""Smallest number of elements of a tensor whose values are assumed not to matter."""


def leave_unfilled(torch: Any) -> None:
    """Make `uniform_` return a large host tensor unchanged."""
    fill = torch.Tensor.uniform_

    @functools.wraps(fill)
    def uniform_(tensor: Any, *args: Any, **named: Any) -> Any:
        if tensor.device.type == "cpu" and tensor.numel() >= _LEAST:
            return tensor
        return fill(tensor, *args, **named)

    torch.Tensor.uniform_ = uniform_
