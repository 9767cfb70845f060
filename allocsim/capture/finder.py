"""Import hook that calls a function once a module is loaded.

Rule: the module is found and loaded as without the hook.  Only the standard library is imported,
because `allocsim record` loads this file by its path in an interpreter that may lack allocsim.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


class Finder:
    """Item of sys.meta_path that calls `then` with the module `name` once it is loaded.

    A program may search for the module, to check if it exists, long before it loads the module.
    """

    def __init__(self, name: str, then: Callable[[Any], Any]) -> None:
        self.name = name
        self.then = then

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # so that the search does not find this finder
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
