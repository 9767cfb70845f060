"""Names of a package that are imported when they are first used.

Rule: a package that says where its names are has imported none of them until somebody asks for
one, so that a command loads what it needs and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["lazily"]


def lazily(namespace: dict[str, object], homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package.

    namespace: its `globals()`, where a name stays once it is found.  homes: the module of each
    name, from the package on.
    """
    package = str(namespace["__name__"])

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(f"{package}.{homes[name]}")
        # All of its names at once: a function may have its module's, which importing it has put
        # in the package.
        its = [each for each, module in homes.items() if module == homes[name]]
        namespace.update({each: getattr(home, each) for each in its})
        return namespace[name]

    return find
