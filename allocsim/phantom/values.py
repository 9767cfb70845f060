"""Compute integer and boolean tensors of a phantom (simulated) GPU on the host.

Sizes and branches of the program that depend on the values of such tensors are then correct.  Every
operator still runs on the simulated device, in the same order, so the allocator gets the same
requests.

The hook (hook/sitecustomize.py) loads this file by its path into the interpreter of the recorded
program, so it imports only the standard library.  The kernels are registered for the dispatch key
BackendSelect, which PyTorch calls after autograd and before the kernels of the device.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

_NUMBERS = frozenset({int, float, bool, complex})
_MOST_KEPT = 1024
"""Largest number of cached host tensors for Python numbers that are operands, as in `x + 1`."""
_ANSWERED, _KNOWN, _NOTED = 2, 1, 0
"""Modes of the phantom GPU for copies to the host: write a given number, report nothing, or report
a read of an unknown value.  The file device.h of the stubs has the same numbers."""


class Values:
    """Kernels that run PyTorch's operators and also compute their results on the host.

    known: device tensors whose values are known on the host, and these values (`Known`).
    routed_reads: number of output sizes and copies to the host that depend on the assumed choice of
        experts.
    """

    def __init__(self, torch: Any, known: Any, router: Any, operators: Any) -> None:
        self.torch = torch
        self.operators = operators
        self.known = known
        self.router = router
        self.routed_reads = 0
        self._tell = ctypes.CDLL(None).device_tell_reads
        self._tell.argtypes = (ctypes.c_int, ctypes.c_longlong)
        self._mode = threading.local()
        self._select = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
        self._cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        self._runs: dict[Any, Callable[..., Any]] = {}
        self._numbers: dict[Any, Any] = {}
        self._wide = frozenset({torch.float32, torch.float64})
        types = [kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)]
        self._floating = frozenset(t for t in types if t.is_floating_point or t.is_complex)
        self._library = torch.library.Library("aten", "IMPL")

    def install(self) -> None:
        for name, kind in self.operators.names():
            for overload in self.operators.overloads(self.torch, name):
                self._register(overload, getattr(self, kind), is_choosing=kind == "chosen")

    def _runner(self, op: Any) -> Callable[..., Any]:
        # PyTorch converts a number to a tensor for its own kernels, but not for a kernel in Python.
        run, operands = op._handle.redispatch_boxed, self.operators.operands(op)

        def either(keys: Any, *args: Any, **kwargs: Any) -> Any:
            for n in operands:
                if n < len(args) and type(args[n]) in _NUMBERS:
                    return run(keys, *self._without_numbers(op, operands, args), **kwargs)
            return run(keys, *args, **kwargs)

        return run if len(operands) < 2 else either

    def _number(self, first: Any, number: complex) -> Any:
        # The tensor has the type of `first` if that changes neither type nor value of the result.
        torch, dtype = self.torch, first.dtype
        is_same = dtype in self._wide or (first.dim() == 0 and type(number) is float)
        kind = dtype if is_same and type(number) in (int, float) else _natural_type(torch, number)
        with torch._C.DisableTorchFunction():
            made = torch.scalar_tensor(number, dtype=kind, device="cpu")
        # Floats equal to 0 are not cached, since 0.0 and -0.0 would be the same key; nor are other
        # types of `first`, for which the tensor depends on the shape of `first`.
        has_key = number or type(number) is int
        if has_key and dtype in self._wide and len(self._numbers) < _MOST_KEPT:
            self._numbers[type(number), number, dtype] = made
        return made

    def _without_numbers(self, op: Any, operands: list[int], args: Any) -> list[Any]:
        torch = self.torch
        deciding = [n for n in self.operators.promoted(op) if n < len(args)][:2]
        replaced = [n for n in operands if n < len(args) and type(args[n]) in _NUMBERS]
        made = list(args)
        for n in replaced:
            kind = _natural_type(torch, args[n])
            made[n] = torch.scalar_tensor(args[n], dtype=kind, device="cpu")
        if len(deciding) == 2:
            expected = torch.result_type(*(args[n] for n in deciding))
            if torch.result_type(*(made[n] for n in deciding)) != expected:
                for n in replaced:
                    made[n] = made[n].to(expected)
        return made

    def _register(self, op: Any, kind: Callable[..., Any], *, is_choosing: bool) -> None:
        # kind: method of this class that runs the operator if arguments have integer or boolean
        # tensors.
        run = self._runs[op] = self._runner(op)
        fast, select = op._handle.redispatch_boxed, self._select
        types, plain = self.known.types, self.torch._C.DisableTorchFunction
        operands = self.operators.operands(op)
        second = operands[1] if len(operands) > 1 else 1 << 20
        is_copy = op._schema.name == "aten::copy_"
        floating, numbers, number_of = self._floating, self._numbers, self._number

        # Nearly all calls end in the next two functions, so they do as little as possible.
        def kernel_of_one(keys: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(args[0], "dtype", None) in floating:
                return fast(keys - select, *args, **kwargs)
            return kernel(keys, *args, **kwargs)

        def kernel_of_two(keys: Any, *args: Any, **kwargs: Any) -> Any:
            dtype = getattr(args[0], "dtype", None)
            if dtype not in floating:
                return kernel(keys, *args, **kwargs)
            if len(args) > second and type(args[second]) in _NUMBERS:
                number = args[second]
                made = numbers.get((type(number), number, dtype))
                made = number_of(args[0], number) if made is None else made
                args = (*args[:second], made, *args[second + 1 :])
            return fast(keys - select, *args, **kwargs)

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            first = args[0] if args else None
            dtype = getattr(first[0] if type(first) is list and first else first, "dtype", None)
            if is_copy and type(args[1]) in _NUMBERS:  # a number that PyTorch made a tensor of
                args = (first, number_of(first, args[1]), *args[2:])
            is_left = dtype in floating and not is_choosing
            if is_left and (not is_copy or args[1].dtype not in types):
                return fast(keys - select, *args, **kwargs)
            if not is_choosing and not self._concerns(args, kwargs):
                return run(keys - select, *args, **kwargs)
            # These calls must be hidden from a mode of the program, such as torch.device.
            with plain():
                return kind(op, lambda: run(keys - select, *args, **kwargs), args, kwargs)

        name = op._schema.name.partition("::")[2]
        overload = op._schema.overload_name
        full = f"{name}.{overload}" if overload else name
        chosen = kernel
        if operands[:1] == [0] and not is_copy and not is_choosing:
            chosen = kernel_of_one if len(operands) == 1 else kernel_of_two
        self._library.impl(full, chosen, "BackendSelect", with_keyset=True)

    def _concerns(self, args: Any, kwargs: Any) -> bool:
        tensor, types = self.torch.Tensor, self.known.types
        for each in args:
            if isinstance(each, tensor):
                if each.dtype in types and each.is_cuda:
                    return True
            elif type(each) is list and any(
                isinstance(one, tensor) and one.dtype in types and one.is_cuda for one in each
            ):
                return True
        return any(
            isinstance(one, tensor) and one.dtype in types and one.is_cuda
            for one in kwargs.values()
        )

    def after(self, op: Any, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """Run an operator on the device, then compute its result on the host too.

        op: overload of the operator.
        run: function that runs the operator on the device.
        args, kwargs: arguments of the operator.
        """
        out = run()
        self._keep(op, (args, kwargs), out, *self._computed(op, args, kwargs, out))
        return out

    def filled(self, op: Any, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """Run an operator such as `fill_`, and keep the value of all elements on the host.

        A phantom GPU stores no data, so later reads of the tensor are answered from the host.
        """
        to = args[0]
        if not self.known.may_have(to):
            return self.after(op, run, args, kwargs)
        out = run()
        one = self.torch.empty((), dtype=to.dtype, device="cpu")
        values, is_routed = self._computed(op, (one, *args[1:]), kwargs, None)
        if values is not None:
            values = values.expand(to.shape)
        self._keep(op, (args, kwargs), out, values, is_routed)
        return out

    def sized(self, op: Any, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """Run an operator whose output size depends on the values of its inputs.

        The size is computed on the host, so that the device allocates an output of the right size.
        """
        values, is_routed = self._computed(op, args, kwargs, None)
        if values is None:
            out = run()
        else:
            self.routed_reads += is_routed
            first = values[0] if isinstance(values, (tuple, list)) else values
            dim = args[1] if op._schema.name.endswith("unique_dim") else 0
            with self.telling(_ANSWERED, first.shape[dim]):
                out = run()
        self._keep(op, (args, kwargs), out, values, is_routed)
        return out

    def chosen(self, op: Any, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """Run a top-k operator on the device.

        A top-k of floating-point scores is taken for the choice of experts in a mixture-of-experts
        layer: assumed indices of experts are stored as its result.
        """
        scores = args[0]
        out = run()
        if not scores.is_cuda:
            return out
        if not scores.is_floating_point():
            self._keep(op, (args, kwargs), out, *self._computed(op, args, kwargs, out))
            return out
        indices = out[1]
        dim = args[2] if len(args) > 2 else -1
        experts = self.router.choose(scores, indices, dim)
        if experts is not None and self.known.may_have(indices):
            self.known.write(indices, experts, is_routed=True)
        return out

    def unknown(self, op: Any, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """Run an in-place operator after which the tensor's values are unknown, and drop them."""
        out = run()
        self._keep(op, (args, kwargs), out, None, False)
        return out

    def scalar(self, op: Any, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """Run an operator that returns a Python number, such as the operator behind `item()`."""
        host = self._hosted(op, args, kwargs, (), [False])
        if host is None:
            return run()
        with self.telling(_KNOWN):
            run()
        return self._runs[op](self._cpu, *host[0])

    def copied(self, op: Any, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        to, source = args[:2]
        if to.is_cuda or not source.is_cuda:
            return self.after(op, run, args, kwargs)
        read = self._read(source)
        if read is None:
            return run()
        values, is_routed = read
        self.routed_reads += is_routed
        with self.telling(_KNOWN):
            out = run()
        self._runs[op](self._cpu, to, values)
        return out

    def telling(self, kind: int, value: int = 0) -> _Telling:
        return _Telling(self._tell, self._mode, (kind, value))

    def _read(self, tensor: Any) -> tuple[Any, bool] | None:
        if not self.known.may_have(tensor):
            return None
        read: tuple[Any, bool] | None = self.known.read(tensor)
        return read

    def _computed(self, op: Any, args: Any, kwargs: Any, out: Any) -> tuple[Any, bool]:
        # The second value is True if the result depends on the assumed choice of experts.
        if out is not None and not any(map(self.known.may_have, _tensors(self.torch, out))):
            return None, False
        routed = [False]
        written = self.operators.written(op)
        host = self._hosted(op, args, kwargs, written, routed)
        if host is None:
            return None, False
        positional, named = host
        is_counted = op._schema.name == "aten::histc"  # the host has no integer kernel
        if is_counted:
            positional[0] = positional[0].double()
        try:
            values = self._runs[op](self._cpu, *positional, **named)
        except (RuntimeError, NotImplementedError, IndexError):
            return None, False  # the host lacks it, or the device reports the error only later
        if not op._schema.returns:
            values = [positional[n] for n in sorted(written)]
        return values, routed[0]

    def _hosted(self, op: Any, args: Any, kwargs: Any, written: Any, routed: list[bool]) -> Any:
        # None if an argument is unknown; `routed` is an output.
        torch = self.torch
        only = self.operators.is_overwritten(op)

        def one(value: Any, is_written: bool) -> Any:
            if isinstance(value, torch.Tensor):
                if not value.is_cuda:
                    return value.clone() if is_written else value
                if is_written and only and self.known.may_have(value):
                    return torch.empty(value.shape, dtype=value.dtype, device="cpu")
                read = self._read(value)
                if read is None:
                    raise _UnknownError
                routed[0] = routed[0] or read[1]
                return read[0].clone() if is_written else read[0]
            if isinstance(value, (list, tuple)):
                return [one(each, is_written) for each in value]
            return value

        try:
            positional = [one(value, n in written) for n, value in enumerate(args)]
            return positional, {key: one(value, key in written) for key, value in kwargs.items()}
        except _UnknownError:
            return None

    def _keep(self, op: Any, given: Any, out: Any, values: Any, is_routed: bool) -> None:
        # Without `values`, the written tensors become unknown.
        known, torch = self.known, self.torch
        args, kwargs = given
        if not op._schema.returns:
            out = [args[n] for n in sorted(self.operators.written(op))]
        outs = list(_tensors(torch, out))
        computed = list(_tensors(torch, values))
        if values is not None and len(outs) == len(computed):
            for n, device in enumerate(outs):
                host = computed[n]
                if known.may_have(device) and device.shape == host.shape:
                    known.write(device, host, is_routed=is_routed)
                elif device.is_cuda and device.layout is torch.strided:
                    known.forget(device)
            return
        written = self.operators.written(op)
        for n, value in (*enumerate(args), *kwargs.items()):
            if n in written:
                for each in _tensors(torch, value):
                    if each.is_cuda and each.layout is torch.strided:
                        known.forget(each)


class _UnknownError(Exception):
    """Exception for an operator whose result cannot be computed, because an input is unknown."""


class _Telling:
    """Context manager that sets how the phantom GPU handles this thread's copies to the host.

    tell: C function of the stubs that sets the state.
    mode: thread-local object that stores the state.
    state: pair of a mode and a number.  The mode is `_NOTED` (report that the program reads an
        unknown value), `_KNOWN` (report nothing) or `_ANSWERED` (write the number to the host).
    """

    __slots__ = ("before", "mode", "state", "tell")

    def __init__(self, tell: Any, mode: Any, state: tuple[int, int]) -> None:
        self.tell, self.mode, self.state = tell, mode, state

    def __enter__(self) -> None:
        self.before = getattr(self.mode, "state", (_NOTED, 0))
        self.mode.state = self.state
        self.tell(*self.state)

    def __exit__(self, *error: object) -> None:
        self.mode.state = self.before
        self.tell(*self.before)


def _natural_type(torch: Any, number: complex) -> Any:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int):
        return torch.int64
    return torch.float64 if isinstance(number, float) else torch.complex128


def _tensors(torch: Any, value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(torch, each)


def install(torch: Any, known: Any, router: Any, operators: Any) -> Values:
    values = Values(torch, known, router, operators)
    values.install()
    return values
