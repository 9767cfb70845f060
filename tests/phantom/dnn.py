"""Call the graph interface of cuDNN in the same way as PyTorch.

The numbers of kinds and attributes are those of NVIDIA's header.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocsim.phantom import Stubs, find_gpu, find_torch, phantom_environment
from tests.phantom.test_stub import Device
from tests.pythons import python_of

SUCCESS, BAD_PARAM, NOT_FINALIZED, NOT_SUPPORTED = 0, 2000, 2004, 3000
ENGINE, CONFIG, HEURISTICS, PLAN, RESAMPLE, GRAPH, TENSOR, MATMUL = 2, 3, 4, 5, 25, 15, 17, 19
REDUCTION = 22
SDPA_FORWARD = 41
IS_DATA_TYPE, IS_INT64, IS_DESCRIPTOR = 1, 3, 15
CONVOLUTION, CONVOLUTION_FORWARD, CONVOLUTION_FILTER, CONVOLUTION_DATA = 1, 10, 11, 12
FLOAT, BFLOAT16 = 0, 9


def run_over_h200(program: str, kernels: Path) -> subprocess.CompletedProcess[str]:
    """Run a program with PyTorch 2.11 on a phantom H200, with a file as its argument."""
    torch = find_torch(python_of("2.11"))
    return subprocess.run(
        [torch.python, "-c", program, str(kernels)],
        env=os.environ | phantom_environment(torch, find_gpu("H200")),
        capture_output=True,
        text=True,
        check=True,
    )


@dataclass(frozen=True)
class ConvolutionShape:
    """A square Conv2d: sizes of input, weight and output."""

    n: int
    ci: int
    hw: int
    co: int
    k: int
    stride: int = 1
    dtype: int = FLOAT

    @property
    def pad(self) -> int:
        return self.k // 2

    @property
    def x(self) -> tuple[int, ...]:
        return self.n, self.ci, self.hw, self.hw

    @property
    def w(self) -> tuple[int, ...]:
        return self.co, self.ci, self.k, self.k

    @property
    def y(self) -> tuple[int, ...]:
        out = (self.hw + 2 * self.pad - self.k) // self.stride + 1
        return self.n, self.co, out, out


class Backend:
    """Functions of the graph interface, with arrays instead of pointers."""

    def __init__(self, stubs: Stubs) -> None:
        self.device = Device(stubs)
        self.dnn = ctypes.CDLL(str(stubs.dnn))

    def create(self, kind: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        assert self.dnn.cudnnBackendCreateDescriptor(kind, ctypes.byref(made)) == SUCCESS
        return made

    def set(self, descriptor: ctypes.c_void_p, name: int, kind: int, values: Sequence[Any]) -> int:
        of = {IS_DATA_TYPE: ctypes.c_int, IS_INT64: ctypes.c_int64, IS_DESCRIPTOR: ctypes.c_void_p}
        array = (of[kind] * len(values))(*values)
        n = ctypes.c_int64(len(values))
        return int(self.dnn.cudnnBackendSetAttribute(descriptor, name, kind, n, array))

    def get(
        self, descriptor: ctypes.c_void_p, name: int, most: int = 8
    ) -> tuple[int, tuple[int, ...]]:
        """Return the status and the int64 values of an attribute."""
        array, n = (ctypes.c_int64 * most)(), ctypes.c_int64()
        status = self.dnn.cudnnBackendGetAttribute(
            descriptor, name, IS_INT64, ctypes.c_int64(most), ctypes.byref(n), array
        )
        return status, tuple(array[: min(n.value, most)])

    def get_into(self, descriptor: ctypes.c_void_p, name: int, out: ctypes.c_void_p) -> int:
        """Read the first descriptor of an attribute into `out`; return the number of elements."""
        array, n = (ctypes.c_void_p * 1)(out), ctypes.c_int64()
        status = self.dnn.cudnnBackendGetAttribute(
            descriptor, name, IS_DESCRIPTOR, ctypes.c_int64(1), ctypes.byref(n), array
        )
        assert status == SUCCESS
        return n.value

    def finalize(self, descriptor: ctypes.c_void_p) -> int:
        return int(self.dnn.cudnnBackendFinalize(descriptor))

    def destroy(self, *descriptors: ctypes.c_void_p) -> None:
        for descriptor in descriptors:
            assert self.dnn.cudnnBackendDestroyDescriptor(descriptor) == SUCCESS

    def tensor(
        self,
        uid: int,
        sizes: Sequence[int],
        dtype: int = BFLOAT16,
        *,
        is_channels_last: bool = False,
    ) -> ctypes.c_void_p:
        made = self.create(TENSOR)
        order = list(range(len(sizes)))
        if is_channels_last:
            order = [0, *order[2:], 1]
        strides, step = [1] * len(sizes), 1
        for i in reversed(order):
            strides[i] = step
            step *= sizes[i]
        assert self.set(made, 901, IS_DATA_TYPE, [dtype]) == SUCCESS
        assert self.set(made, 902, IS_INT64, sizes) == SUCCESS
        assert self.set(made, 903, IS_INT64, strides) == SUCCESS
        assert self.set(made, 906, IS_INT64, [uid]) == SUCCESS
        assert self.finalize(made) == SUCCESS
        return made

    def graph(self, *operations: tuple[int, Mapping[int, Sequence[int]]]) -> ctypes.c_void_p:
        """Return a graph of operations, given as kind and tensor sizes by attribute.

        The graph has the only references to its operations and tensors.
        """
        made = self.create(GRAPH)
        kept = [self._operation(kind, tensors) for kind, tensors in operations]
        assert self.set(made, 801, IS_DESCRIPTOR, kept) == SUCCESS
        assert self.finalize(made) == SUCCESS
        self.destroy(*kept)
        return made

    def _operation(self, kind: int, sizes: Mapping[int, Sequence[int]]) -> ctypes.c_void_p:
        made = self.create(kind)
        tensors = {name: self.tensor(name, each) for name, each in sizes.items()}
        for name, tensor in tensors.items():
            assert self.set(made, name, IS_DESCRIPTOR, [tensor]) == SUCCESS
        assert self.finalize(made) == SUCCESS
        self.destroy(*tensors.values())
        return made

    def attention(self, queries: Sequence[int], keys: Sequence[int]) -> ctypes.c_void_p:
        """Return scaled dot product attention as one operation.

        Sizes are batch, heads, length, values.
        """
        shapes = (queries, keys, keys, queries)
        return self.graph((SDPA_FORWARD, dict(enumerate(shapes, start=2800))))

    def attention_in_parts(self, queries: Sequence[int], keys: Sequence[int]) -> ctypes.c_void_p:
        """Return attention as two matrix products, for the same sizes as `attention`."""
        batch, heads, length, values = queries
        scores = (batch, heads, length, keys[2])
        transposed = (*keys[:2], values, keys[2])
        return self.graph(
            (MATMUL, {1520: queries, 1521: transposed, 1522: scores}),
            (MATMUL, {1520: scores, 1521: keys, 1522: queries}),
        )

    def attention_backward(self, queries: Sequence[int], keys: Sequence[int]) -> ctypes.c_void_p:
        """Return the five products of the backward pass and the sums over heads that share keys."""
        batch, heads, length, values = queries
        scores = (batch, heads, length, keys[2])
        transposed = (*keys[:2], values, keys[2])
        of_heads = (batch, heads, keys[2], values)
        back = (batch, heads, keys[2], length)
        sums = [(REDUCTION, {1610: of_heads, 1611: keys})] * (2 if keys[1] < heads else 0)
        return self.graph(
            (REDUCTION, {1610: queries, 1611: (batch, heads, length, 1)}),
            (MATMUL, {1520: queries, 1521: transposed, 1522: scores}),
            (MATMUL, {1520: back, 1521: queries, 1522: of_heads}),
            (MATMUL, {1520: queries, 1521: transposed, 1522: scores}),
            (MATMUL, {1520: back, 1521: queries, 1522: of_heads}),
            (MATMUL, {1520: scores, 1521: keys, 1522: queries}),
            *sums,
        )

    def convolution(
        self, kind: int, shape: ConvolutionShape, *, is_channels_last: bool = False
    ) -> ctypes.c_void_p:
        """Return a convolution as PyTorch describes it: forward, or backward for weight or data."""
        how, operation, made = self.create(CONVOLUTION), self.create(kind), self.create(GRAPH)
        for name, each in ((102, 1), (103, shape.stride), (104, shape.pad), (105, shape.pad)):
            assert self.set(how, name, IS_INT64, [each] * 2) == SUCCESS
        assert self.finalize(how) == SUCCESS
        first = {CONVOLUTION_FORWARD: 702, CONVOLUTION_FILTER: 714, CONVOLUTION_DATA: 708}[kind]
        x, w, y = (
            self.tensor(uid, sizes, shape.dtype, is_channels_last=is_channels_last)
            for uid, sizes in enumerate((shape.x, shape.w, shape.y), start=1)
        )
        for name, value in enumerate((how, w, x, y), start=first):
            assert self.set(operation, name, IS_DESCRIPTOR, [value]) == SUCCESS
        assert self.finalize(operation) == SUCCESS
        assert self.set(made, 801, IS_DESCRIPTOR, [operation]) == SUCCESS
        assert self.finalize(made) == SUCCESS
        self.destroy(how, x, w, y, operation)
        return made

    def heuristics(self, graph: ctypes.c_void_p) -> tuple[int, ctypes.c_void_p]:
        """Return heuristics for a graph, and the status of finalizing them."""
        made = self.create(HEURISTICS)
        assert self.set(made, 201, IS_DESCRIPTOR, [graph]) == SUCCESS
        return self.finalize(made), made

    def plan(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        """Return a plan of the heuristics' first configuration."""
        status, heuristics = self.heuristics(graph)
        config, made = self.create(CONFIG), self.create(PLAN)
        assert (status, self.get_into(heuristics, 202, config)) == (SUCCESS, 1)
        assert self.set(made, 401, IS_DESCRIPTOR, [config]) == SUCCESS
        assert self.finalize(made) == SUCCESS
        self.destroy(heuristics, config)
        return made

    def workspace(self, graph: ctypes.c_void_p) -> int:
        """Return the workspace in bytes of the plan for `graph`."""
        plan = self.plan(graph)
        status, (size,) = self.get(plan, 402)
        assert status == SUCCESS
        self.destroy(plan, graph)
        return size
