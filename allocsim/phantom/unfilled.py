"""Tensors of the host without the numbers drawn for them, where nobody ever looks at one.

Rule: runs in the program's interpreter, loaded by the hook from its path, once torch is; only the
standard library is imported.  What is on the device is left alone, and so is what is small: sizes
may depend on it.

Adapters of a model of 70 billion parameters are made on the host: 300 million numbers, three
seconds, and on a phantom all of them are zero.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["leave_unfilled"]

_LEAST = 1 << 14
"""Numbers of a tensor whose values nothing depends on."""


def leave_unfilled(torch: Any) -> None:
    """Lets `uniform_` of a large tensor of the host return it as it is."""
    fill = torch.Tensor.uniform_

    @functools.wraps(fill)
    def uniform_(tensor: Any, *args: Any, **named: Any) -> Any:
        if tensor.device.type == "cpu" and tensor.numel() >= _LEAST:
            return tensor
        return fill(tensor, *args, **named)

    torch.Tensor.uniform_ = uniform_
