"""Lazy imports: names of a package that are imported on first use.

A command then loads only the modules that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(namespace: dict[str, object], homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` function that imports a name of a package on first use.

    namespace: `globals()` of the package, where imported names are stored.
    homes: name of the module that defines each name, relative to the package.
    """
    module, package = str(namespace["__name__"]), str(namespace["__package__"])

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = import_module(f"{package}.{homes[name]}")
        # The import binds the module's name to the module.  A function may have the same name, so
        # all names of the module are set again.
        its = [each for each, module in homes.items() if module == homes[name]]
        namespace.update({each: getattr(home, each) for each in its})
        return namespace[name]

    return find
