"""Store the contents of integer and boolean tensors of a simulated GPU on the host.

The hook (hook/sitecustomize.py) loads this file by its path into the interpreter of the recorded
program, so it imports only the standard library.

Contents are stored for a storage, which is the memory that a tensor and its views share.  They are
dropped when the storage is freed or an operator writes unknown values to it.  Storing them neither
requests device memory nor keeps it alive.
"""

from __future__ import annotations

from typing import Any

MOST_NUMBERS = 1 << 22
"""Largest number of elements for which a device tensor's values are computed on the host."""

MOST_BYTES = 1 << 25
"""Largest storage of a device tensor whose contents are kept on the host, in bytes."""

_PRUNED_EVERY = 256
"""Number of new storages after which the contents of all freed storages are dropped."""


class _Contents:
    """Contents of one storage, the memory that a tensor and its views share.

    storage: address of PyTorch's storage object; while `weak` exists, no other object gets it.
    weak: weak reference to the storage object.
    pointer: device address of the storage's memory.
    size: bytes of the storage.
    constant: host tensor without dimensions: the value of all elements; None if elements differ.
    data: host tensor with the bytes of the storage; None if `constant` describes them.
    known: host tensor with a boolean per byte, True if the byte is known; None if all are known.
    version: PyTorch's count of in-place writes to the storage when the contents were stored; None
        if it does not count them.  Another count means that the contents are out of date.
    is_settled: False until the first access after a write.  This access also accepts the count
        `version + 1`, because PyTorch counts some writes only after they are stored here.
    is_routed: True if the contents depend on the assumed choice of experts.
    """

    __slots__ = (
        "constant", "data", "is_routed", "is_settled", "known", "pointer", "size", "storage",
        "version", "weak",
    )  # fmt: skip

    constant: Any
    data: Any
    is_routed: bool
    is_settled: bool
    known: Any
    pointer: int
    size: int
    storage: int
    version: int | None
    weak: int


class Known:
    """Contents of all tensors of the phantom (simulated) GPU whose values are known on the host."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        names = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
        self.types = frozenset(getattr(torch, name) for name in names if hasattr(torch, name))
        self._copy = torch.ops.aten.copy_.default
        self._cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        self._by_storage: dict[int, _Contents] = {}
        self._prune_at = _PRUNED_EVERY

    def may_have(self, tensor: Any) -> bool:
        return (
            tensor.dtype in self.types
            and tensor.is_cuda
            and tensor.layout is self.torch.strided
            and tensor.numel() <= MOST_NUMBERS
        )

    def read(self, tensor: Any) -> tuple[Any, bool] | None:
        """Return the contents of `tensor`; None if any element is unknown.

        The pair has a host tensor, and True if it depends on the assumed choice of experts.
        """
        contents = self._of(tensor)
        if contents is None:
            return None
        if contents.known is not None and not bool(self._view(contents.known, tensor, 1).all()):
            return None
        constant = contents.constant
        if constant is not None and constant.dtype is tensor.dtype:
            return constant.expand(tensor.shape), contents.is_routed
        return self._view(self._data(contents), tensor), contents.is_routed

    def write(self, tensor: Any, values: Any, *, is_routed: bool = False) -> None:
        """Store the host tensor `values` as the contents of `tensor`.

        is_routed: True if the values depend on the assumed choice of experts.
        """
        storage = tensor.untyped_storage()
        if storage.nbytes() > MOST_BYTES:
            return
        contents = self._of(tensor) or self._add(storage)
        is_whole = tensor.numel() * tensor.element_size() == storage.nbytes()
        contents.is_routed = is_routed or (contents.is_routed and not is_whole)
        contents.version = _version(tensor)
        contents.is_settled = contents.version is None
        # If all values are one expanded element, this element describes the whole storage.
        if is_whole and values.numel() > 1 and not any(values.stride()):
            contents.constant = values.as_strided((), ()).to(tensor.dtype, copy=True)
            contents.data = contents.known = None
            return
        if is_whole:
            contents.constant = None
        elif contents.data is None and contents.constant is None:
            # Nothing was written yet.
            contents.known = self.torch.zeros(contents.size, dtype=self.torch.bool, device="cpu")
        self._copy.redispatch(self._cpu, self._view(self._data(contents), tensor), values)
        if is_whole:
            contents.known = None
        elif contents.known is not None:
            for byte in range(tensor.element_size()):
                self._view(contents.known, tensor, 1, byte).fill_(True)

    def forget(self, tensor: Any) -> None:
        if tensor.numel() == 0:
            return
        contents = self._of(tensor)
        if contents is None:
            return
        if contents.known is None:
            contents.known = self.torch.ones(contents.size, dtype=self.torch.bool, device="cpu")
        contents.version = _version(tensor)
        contents.is_settled = contents.version is None
        self._view(contents.known, tensor, 1).fill_(False)

    def _of(self, tensor: Any) -> _Contents | None:
        storage = tensor.untyped_storage()
        contents = self._by_storage.get(storage._cdata)
        if contents is None or contents.pointer != storage.data_ptr():
            return None  # the storage was resized or its memory was replaced
        version = _version(tensor)
        if version != contents.version:
            if contents.is_settled or version is None or contents.version is None:
                return None
            if version != contents.version + 1:
                return None
            contents.version = version
        contents.is_settled = True
        return contents

    def _add(self, storage: Any) -> _Contents:
        if len(self._by_storage) >= self._prune_at:
            self._prune()
        before = self._by_storage.get(storage._cdata)
        contents = _Contents()
        contents.storage = storage._cdata
        contents.weak = storage._weak_ref() if before is None else before.weak
        contents.pointer = storage.data_ptr()
        contents.size = storage.nbytes()
        contents.constant = contents.data = contents.known = None
        contents.version = None
        contents.is_settled = False
        contents.is_routed = False
        self._by_storage[contents.storage] = contents
        return contents

    def _data(self, contents: _Contents) -> Any:
        if contents.data is None:
            torch = self.torch
            contents.data = torch.empty(contents.size, dtype=torch.uint8, device="cpu")
            if contents.constant is not None:
                numbers = contents.data.view(contents.constant.dtype)
                self._copy.redispatch(self._cpu, numbers, contents.constant)
                contents.constant = None
        return contents.data

    def _prune(self) -> None:
        kind = self.torch.UntypedStorage
        for key, contents in list(self._by_storage.items()):
            if kind._expired(contents.weak):
                del self._by_storage[key]
                kind._free_weak_ref(contents.weak)
        self._prune_at = 2 * len(self._by_storage) + _PRUNED_EVERY

    def _view(self, data: Any, tensor: Any, step: int = 0, byte: int = 0) -> Any:
        # step: 0 for elements of the type of `tensor`; 1 for the byte at index `byte` of each.
        size = tensor.element_size()
        strides, offset = tensor.stride(), tensor.storage_offset()
        if step:
            strides = tuple(size * stride for stride in strides)
            return data.as_strided(tensor.shape, strides, offset * size + byte)
        numbers = data[: len(data) // size * size].view(tensor.dtype)
        return numbers.as_strided(tensor.shape, strides, offset)


def _version(tensor: Any) -> int | None:
    """Return PyTorch's count of in-place writes to a tensor's storage; None in inference mode."""
    return None if tensor.is_inference() else tensor._version
