"""Dataclasses of the package beside those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from allocsim import _dataclasses
from allocsim._dataclasses import dataclass, field, fields, replace


@dataclass(frozen=True, slots=True)
class Point:
    """Point with a default, a factory and a field that does not count."""

    x: int
    y: int = 2
    more: tuple[int, ...] = field(default_factory=tuple)
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Pixel(Point):
    """Subclass, whose methods are its own."""

    color: str = "red"


@dataclass(order=True)
class Plain:
    number: int


METHODS = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__")


def test_methods_behave_like_those_of_the_standard_library() -> None:
    point = Point(1, more=(3,), note="a")
    assert repr(point) == "Point(x=1, y=2, more=(3,), note='a')"
    assert point == Point(1, 2, (3,), "b")
    assert hash(point) == hash(Point(1, 2, (3,), "b"))
    assert point != Point(1)
    assert point != Pixel(1, more=(3,))
    assert replace(point, y=5).y == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 4  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]
    assert Plain(1) < Plain(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Plain(1))


def test_a_subclass_compiles_its_own_methods() -> None:
    pixel = Pixel(1, color="blue")
    assert repr(pixel) == "Pixel(x=1, y=2, more=(), note='', color='blue')"
    assert pixel != Pixel(1)
    assert [each.name for each in fields(pixel)][-1] == "color"
    assert repr(Point(1)) == "Point(x=1, y=2, more=(), note='')"


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_are_equal(copied: Any) -> None:
    point = Point(1, more=(3,), note="a")
    assert copied(point) == point
    assert copied(point).note == "a"


def test_signature_is_that_of_the_fields() -> None:
    @dataclass(frozen=True)
    class Twin:
        x: int
        y: int = 2

    assert list(inspect.signature(Twin).parameters) == ["x", "y"]
    assert Twin.__init__.__qualname__.endswith("Twin.__init__")


@pytest.mark.skipif(_dataclasses._COMPILE is None, reason="it compiles all methods in one call")
def test_methods_are_compiled_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    real = _dataclasses._COMPILE
    assert real is not None

    def compile_method(name: str, *arguments: Any, **options: Any) -> Any:
        compiled.append(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(_dataclasses, "_COMPILE", compile_method)

    @dataclass(frozen=True, slots=True)
    class Late:
        x: int

    assert not compiled
    late = Late(1)
    assert compiled == ["__init__"]
    assert [Late(n).x for n in range(3)] == [0, 1, 2]
    assert repr(late) == repr(Late(1))
    assert compiled == ["__init__", "__repr__"]
    assert inspect.isfunction(vars(Late)["__init__"])
    assert not inspect.isfunction(vars(Late)["__eq__"])
    for name in METHODS:
        getattr(Late, name)
    assert sorted(compiled) == sorted(METHODS)


def test_other_dataclasses_are_left_alone() -> None:
    @dataclasses.dataclass
    class Theirs:
        x: int

    assert inspect.isfunction(vars(Theirs)["__init__"])
