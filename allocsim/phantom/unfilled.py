"""Skip the random initialisation of large host tensors, to save time.

Rule: this file runs in the program's interpreter, loaded by the hook from its path once torch is
loaded, so it imports only the standard library.  Device tensors and small host tensors are still
filled, because sizes may depend on them.

Adapters of a model with 70 billion parameters have 300 million numbers.  Drawing them on the host
takes three seconds, and on a phantom GPU all values are zero anyway.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["leave_unfilled"]

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
