"""Public names as Markdown, from their docstrings.

    python -m tests.api              print it
    python -m tests.api FOLDER       write the page below that folder, as `make docs` does

Rule: the page has only the text of `help()`, in the order of each `__all__`.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import allocsim
from allocsim import capture, errors, plot, results, units, workload

__all__ = ["PAGE", "page"]

PAGE = "reference/api.md"
MODULES = (results, plot, errors, units)
"""Public modules whose names are on the page, after those of the package."""
_HEAD = """\
# From Python

The public names with their docstrings: those of `allocsim`, then those of its modules. Sizes are
bytes; entries are numbered from 0. At a prompt a result shows itself on a line, in a notebook as a
small table.
"""
_NAMES = re.compile(r"\w+(?:, \w+)*: ")
_GAP = re.compile(r"\n{3,}")


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for name in allocsim.__all__:
        parts += _about(name, getattr(allocsim, name))
    for module in MODULES:
        parts.append(f"# {module.__name__}\n\n{_text(module)}\n")
        for name in module.__all__:
            if name not in allocsim.__all__:
                parts += _about(name, getattr(module, name))
    for package in (capture, workload):
        parts += _about(package.__name__, package)
    return _GAP.sub("\n\n", "\n".join(parts))


def _about(name: str, value: object) -> Iterator[str]:
    """Yield the section of one name."""
    if isinstance(value, ModuleType):
        yield f"## {name}\n\n{_text(value)}\n"
        for each in value.__all__:
            member = getattr(value, each)
            if inspect.isfunction(member):
                yield f"`{name}.{each}{_signature(member)}`\n\n{_text(member)}\n"
    elif inspect.isclass(value):
        yield f"## {name}\n\n{_text(value)}\n"
        yield from _members(value)
    elif callable(value):
        yield f"## {name}\n\n`{name}{_signature(value)}`\n\n{_text(value)}\n"
    else:
        yield f"## {name}\n\n`{value:,}`\n"


def _members(owner: type) -> Iterator[str]:
    """Yield the constructor, methods and properties that a class defines and documents."""
    is_made_by_hand = "__init__" in vars(owner) and not dataclasses.is_dataclass(owner)
    if is_made_by_hand and not issubclass(owner, enum.Enum | Exception):
        yield f"`{owner.__name__}{_signature(owner)}`\n"
    for name, member in vars(owner).items():
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            yield f"- `{name}`: {_line(member)}"
        elif inspect.isfunction(member):
            yield f"- `{name}{_signature(member, drops_self=True)}`: {_line(member)}"
    yield ""


def _signature(called: object, *, drops_self: bool = False) -> str:
    signature = inspect.signature(called)  # type: ignore[arg-type]
    parameters = list(signature.parameters.values())[drops_self:]
    bare = [
        each.replace(annotation=inspect.Parameter.empty, default=_default(called, each.default))
        for each in parameters
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


class _Name(str):
    """Name that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _default(called: object, value: object) -> object:
    """Return a default as it is written: by name if it is a compound value."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    around = vars(sys.modules[getattr(called, "__module__", "")])
    return next((_Name(name) for name, known in around.items() if known is value), value)


def _text(value: object) -> str:
    """Return a docstring as Markdown: examples are kept, other paragraphs are joined."""
    paragraphs = (inspect.getdoc(value) or "").split("\n\n")
    return "\n\n".join(each if each.startswith("    ") else _flowing(each) for each in paragraphs)


def _line(value: object) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def _flowing(paragraph: str) -> str:
    """Return lines that begin with names and a colon as a list."""
    lines: list[str] = []
    in_list = False
    for line in paragraph.splitlines():
        if _NAMES.match(line):
            lines.append(f"- {line}")
            in_list = True
        elif in_list and line.startswith("Raises "):
            lines += ["", line]
            in_list = False
        else:
            lines.append(f"  {line.strip()}" if in_list else line)
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Print or write the page."""
    if arguments:
        path = Path(arguments[0], PAGE)
        path.parent.mkdir(exist_ok=True)
        path.write_text(page())
    else:
        print(page())


if __name__ == "__main__":
    main(sys.argv[1:])
