"""An import hook that calls back as soon as a module has been loaded.

Rule: the module is found and loaded as without it.  Nothing but the standard library is imported:
the recorder of `allocsim record` loads this file by its path, in an interpreter that need not have
allocsim.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Finder"]


class Finder:
    """Finds a module as usual, and hands it on once it is loaded.

    It may be looked for, to know whether it is there, long before it is loaded.
    """

    def __init__(self, name: str, then: Callable[[Any], Any]) -> None:
        self.name = name
        self.then = then

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # or it would find itself
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            self.then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
