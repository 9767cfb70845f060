"""Import of a package's names on first use, so that a command loads only the modules it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(namespace: dict[str, object], homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` function that imports a name of a package on first use.

    namespace: `globals()` of the package, where imported names are stored.
    homes: dictionary from a module of the package to the names to import from it, separated by
        spaces; "risk=risk_of" imports `risk_of` under the name `risk`.
    """
    module, package = str(namespace["__name__"]), str(namespace["__package__"])
    names = {
        home: [name.partition("=")[::2] for name in text.split()] for home, text in homes.items()
    }
    home_of = {name: home for home, pairs in names.items() for name, _ in pairs}

    def find(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = import_module(f"{package}.{home_of[name]}")
        # The import sets the module's name in the package to the module.  A function may have the
        # same name, so all names from the module are set again.
        for new, original in names[home_of[name]]:
            namespace[new] = getattr(home, original or new)
        return namespace[name]

    return find
