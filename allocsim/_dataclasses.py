"""Dataclasses whose generated methods are compiled on first use, so that commands start faster.

The standard library compiles up to seven functions when a class is defined, which took a third of
the time of a short command.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import asdict, astuple, field, fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "astuple", "dataclass", "field", "fields", "replace"]

_COMPILE: Callable[..., Any] | None = getattr(dataclasses, "_create_fn", None)
"""Function that compiles one method; None since Python 3.13, which compiles all in one call."""

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """Return `cls` as a dataclass; the arguments are those of `dataclasses.dataclass`."""
        if cls is None:
            return partial(dataclass, **options)
        cls.__doc__ = cls.__doc__ or cls.__name__  # the default is the signature of __init__
        if _COMPILE is None:
            return dataclasses.dataclass(cls, **options)
        dataclasses._create_fn = _Method
        try:
            return dataclasses.dataclass(cls, **options)
        finally:
            dataclasses._create_fn = _COMPILE


class _Method:
    """Method of a class, compiled when it is first needed, which then takes this object's place."""

    def __init__(self, name: str, *arguments: Any, **options: Any) -> None:
        assert _COMPILE is not None
        self.__name__ = name
        self._compiled = cache(partial(_COMPILE, name, *arguments, **options))

    def __get__(self, instance: object, owner: type) -> Any:
        function = self._compiled()
        for each in owner.__mro__:
            if vars(each).get(self.__name__) is self:
                function.__qualname__ = f"{each.__qualname__}.{self.__name__}"
                setattr(each, self.__name__, function)
        return function.__get__(instance, owner)

    def __call__(self, *arguments: Any) -> Any:
        # The standard library wraps `__repr__`.
        return self._compiled()(*arguments)
