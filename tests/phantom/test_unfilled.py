"""Random numbers of large host tensors are not drawn."""

from __future__ import annotations

import types

import pytest

from allocsim.phantom.assumptions import leave_unfilled


class Tensor:
    """Fake tensor that counts how often it is filled."""

    def __init__(self, numbers: int, device: str) -> None:
        self.numbers, self.device, self.filled = numbers, types.SimpleNamespace(type=device), 0

    def numel(self) -> int:
        return self.numbers

    def uniform_(self, *_: float, **__: float) -> Tensor:
        self.filled += 1
        return self


@pytest.fixture
def tensor(monkeypatch: pytest.MonkeyPatch) -> type[Tensor]:
    monkeypatch.setattr(Tensor, "uniform_", Tensor.uniform_)  # restored after the test
    leave_unfilled(types.SimpleNamespace(Tensor=Tensor))
    return Tensor


def test_large_host_tensor_is_not_filled(tensor: type[Tensor]) -> None:
    large = tensor(1 << 20, "cpu")
    assert large.uniform_(-1.0, 1.0) is large
    assert large.filled == 0


@pytest.mark.parametrize(("numbers", "device"), [(16, "cpu"), (1 << 20, "cuda"), (1, "cuda")])
def test_small_host_and_device_tensors_are_filled(
    numbers: int, device: str, tensor: type[Tensor]
) -> None:
    each = tensor(numbers, device)
    assert each.uniform_(-1.0, high=1.0) is each
    assert each.filled == 1
