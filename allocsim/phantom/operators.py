"""List the operators of PyTorch that are computed on the host for a simulated GPU.

The hook (hook/sitecustomize.py) loads this file by its path into the interpreter of the recorded
program, so it imports only the standard library.  Operators that its PyTorch lacks are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_ELEMENTWISE = (
    *("add", "sub", "rsub", "mul", "floor_divide", "remainder", "fmod", "pow", "div"),
    *("neg", "abs", "sign", "minimum", "maximum", "clamp", "clamp_min", "clamp_max"),
    *("eq", "ne", "lt", "le", "gt", "ge", "isin", "where", "masked_fill", "bucketize"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "searchsorted"),
    *("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__"),
    *("logical_and", "logical_or", "logical_xor", "logical_not", "floor", "ceil", "round"),
    *("__ilshift__", "__irshift__", "trunc", "square", "sgn"),
)
_REDUCTIONS = (
    *("sum", "prod", "any", "all", "max", "min", "amax", "amin", "aminmax", "argmax", "argmin"),
    *("cumsum", "cumprod", "_cummax_helper", "_cummin_helper", "count_nonzero", "median"),
    *("sort", "kthvalue", "bincount", "histc"),
)
_MOVES = (
    *("cat", "flip", "roll", "tril", "triu", "index_select", "gather", "scatter", "scatter_add"),
    *("scatter_reduce", "index", "index_put", "_index_put_impl_", "_unsafe_index", "take"),
    *("index_add", "index_copy", "index_fill", "masked_scatter", "constant_pad_nd", "put"),
    *("diag", "trace", "nonzero_static"),
)
_FILLS = ("fill", "zero", "arange", "eye", "full", "copy")
_IN_PLACE = {"copy": "copied", "fill": "filled", "zero": "filled"}
"""Method of `Values`, keyed by in-place operator; all others have the method `after`."""
_SIZED = (
    *("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"),
    "repeat_interleave",
)
"""Operators whose output size depends on values of the input; PyTorch copies it to the host."""
_CHOOSING = ("topk",)
"""Operators with which a mixture-of-experts model chooses experts."""
_UNKNOWN = ("random", "bernoulli", "geometric", "set", "resize")
"""In-place operators after which the values of their tensor are unknown."""

_LEFT = frozenset({"aten::pow.Tensor_Tensor_out", "aten::isin.Tensor_Tensor_out"})
"""Overloads that are not computed on the host: PyTorch passes them a Python number as a device
tensor, which a kernel in Python cannot accept."""
_MASKS = frozenset({"condition", "mask"})
"""Names of tensor arguments of operators that do not affect the dtype of the result."""


def names() -> Iterator[tuple[str, str]]:
    """Yield the name of each operator to compute, and the name of the `Values` method for it."""
    for name in (*_ELEMENTWISE, *_REDUCTIONS, *_MOVES, *_FILLS):
        yield name, "after"
        yield f"{name}_", _IN_PLACE.get(name, "after")
    for name in _SIZED:
        yield name, "sized"
    for name in _CHOOSING:
        yield name, "chosen"
    for name in _UNKNOWN:
        yield f"{name}_", "unknown"
    yield "_local_scalar_dense", "scalar"
    yield "equal", "scalar"


def overloads(torch: Any, name: str) -> Iterator[Any]:
    """Yield the overloads of the operator `name` that can be computed on the host.

    These overloads have no kernel for the dispatch key BackendSelect, where `Values` registers one.
    """
    packet = getattr(torch.ops.aten, name, None)
    for overload in () if packet is None else packet.overloads():
        op = getattr(packet, overload)
        has, name = torch._C._dispatch_has_kernel_for_dispatch_key, op.name()
        if name in _LEFT or not torch._C._dispatch_has_kernel(name):
            continue  # operators that exist only for TorchScript have no kernel either
        if not has(name, "CompositeImplicitAutograd") and not has(name, "BackendSelect"):
            yield op


def operands(op: Any) -> list[int]:
    kinds = (str(argument.type) for argument in op._schema.arguments)
    return [n for n, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]")]


def promoted(op: Any) -> list[int]:
    """Return the positions of the tensor arguments that determine the dtype of the result."""
    named = op._schema.arguments
    return [n for n in operands(op) if named[n].name not in _MASKS]


def written(op: Any) -> frozenset[int | str]:
    known: frozenset[int | str] | None = _WRITTEN.get(op)
    if known is None:
        found: list[int | str] = []
        for n, argument in enumerate(op._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                found.append(argument.name if argument.kwarg_only else n)
        known = _WRITTEN[op] = frozenset(found)
    return known


_WRITTEN: dict[Any, frozenset[int | str]] = {}


def is_overwritten(op: Any) -> bool:
    name = op._schema.name.partition("::")[2]
    is_filled = name in ("fill_", "zero_", "copy_", "_cummax_helper", "_cummin_helper")
    return is_filled or any(argument.is_out for argument in op._schema.arguments)
