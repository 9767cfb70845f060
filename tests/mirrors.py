"""Table of the functions that correspond to upstream's, read from docstrings.

    python -m tests.mirrors             print the table
    python -m tests.mirrors docs        write it into allocator.md of that folder

Rule: a counterpart of a function or type of upstream's native allocator has a docstring line
`Mirrors: get_free_block`, several names with commas. Names without a class are those of
`DeviceCachingAllocator` or of its file. The page has only the text of these lines between its
marks.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from allocsim.cli.reference import between_marks

__all__ = ["PAGE", "Mirror", "lines", "mirrors", "rewritten", "table"]

PACKAGE = Path(__file__).parents[1] / "allocsim"
PAGE = "allocator.md"
LINE = re.compile(r"^ *Mirrors: (\w[\w:~]*(?:, \w[\w:]*)*)$", re.MULTILINE)

Mirror = tuple[str, str, str]
"""(name in upstream, name here with its class, file below allocsim/)"""

_Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def lines(docstring: str) -> list[str]:
    """Return upstream's names in a docstring."""
    return [name for match in LINE.finditer(docstring) for name in match[1].split(", ")]


@cache
def mirrors() -> tuple[Mirror, ...]:
    """Return every counterpart in the package, by upstream's name."""
    found = [
        (upstream, name, file.relative_to(PACKAGE).as_posix())
        for file in sorted(PACKAGE.rglob("*.py"))
        for name, docstring in docstrings(ast.parse(file.read_text()))
        for upstream in lines(docstring)
    ]
    return tuple(sorted(found, key=lambda mirror: (mirror[0].lower(), mirror[2], mirror[1])))


def docstrings(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name with its class, docstring) of each class and function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Named):
            name = f"{inside}{node.name}"
            yield name, ast.get_docstring(node) or ""
            yield from docstrings(node, f"{name}.")


def table() -> str:
    """Return the counterparts as Markdown, with a row for each of upstream's names."""
    rows: dict[str, list[str]] = {}
    for upstream, name, file in mirrors():
        rows.setdefault(upstream, []).append(f"`{name}` in `{file}`")
    head = "| upstream | here |\n|---|---|"
    return "\n".join([head, *(f"| `{up}` | {'; '.join(ours)} |" for up, ours in rows.items())])


def rewritten(text: str) -> str:
    """Return a page with the table between its marks; raise ValueError for a page without marks."""
    return between_marks(text, "mirrors", "python -m tests.mirrors docs", table())


def main(arguments: list[str]) -> None:
    """Print or write the table."""
    if not arguments:
        print(table())
        return
    path = Path(arguments[0]) / PAGE
    path.write_text(rewritten(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
