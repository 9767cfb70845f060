"""Counterparts in allocsim of the classes and functions of PyTorch's allocator (upstream).

    python -m tests.mirrors             print the table of those with other names
    python -m tests.mirrors docs        write it into concepts/allocator.md of that folder

A class or function of the core with upstream's name (`SAME_NAMES`) is its counterpart.  Where the
names differ, a line of the docstring gives upstream's: `Mirrors: should_split`, `Mirrors: a, b`.
Names without a class belong to `DeviceCachingAllocator` or to its file.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.reference import between_marks

__all__ = ["PAGE", "SAME_NAMES", "Mirror", "lines", "mirrors", "rewritten", "same_names", "table"]

PACKAGE = Path(__file__).parents[1] / "allocsim"
CORE = PACKAGE / "core"
PAGE = "concepts/allocator.md"
LINE = re.compile(r"^ *Mirrors: (\w[\w:~]*(?:, \w[\w:]*)*)$", re.MULTILINE)

SAME_NAMES = {
    *("AllocParams", "Block", "BlockPool", "DeviceStats", "ExpandableSegment"),
    *("ExpandableSegment::map", "ExpandableSegment::unmap", "PrivatePool", "Stat"),
    *("TraceEntry", "alloc_block", "alloc_found_block", "beginAllocateToPool"),
    *("create_or_incref_pool", "emptyCache", "endAllocateToPool", "find_expandable_block"),
    *("free", "free_block", "garbage_collect_cached_blocks", "get_all_blocks"),
    *("get_free_block", "get_pool", "insert_events"),
    *("insert_events_deferred_until_no_capture", "malloc", "map_block", "process_events"),
    *("recordStream", "release_available_cached_blocks", "release_block", "release_blocks"),
    *("release_cached_blocks", "releasePool", "remove_cudagraph_stream_uses", "round_size"),
    *("setAllocatorSettings", "synchronize_and_free_events", "try_allocate_expandable_block"),
    *("try_mempool_fallback", "unmap_block"),
}
"""Names of upstream that the core uses too, but for case and underscores."""

Mirror = tuple[str, str, str]
"""(upstream's name, allocsim's name with its class, the file below allocsim/)"""

_Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def lines(docstring: str) -> list[str]:
    """Return the names of upstream in the `Mirrors:` lines of a docstring."""
    return [name for match in LINE.finditer(docstring) for name in match[1].split(", ")]


def same_names(name: str) -> list[str]:
    """Return the names of upstream in `SAME_NAMES` that equal the name of a class or function."""
    with_class = _plain(name.replace(".", "::"))
    last = _plain(name.rpartition(".")[2])
    return [each for each in SAME_NAMES if _plain(each) in {with_class, last}]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def mirrors() -> tuple[Mirror, ...]:
    """Return every counterpart in the package, ordered by upstream's name."""
    found = [
        (upstream, name, file.relative_to(PACKAGE).as_posix())
        for file in sorted(PACKAGE.rglob("*.py"))
        for name, docstring in docstrings(ast.parse(file.read_text()))
        for upstream in [*lines(docstring), *(same_names(name) if file.parent == CORE else ())]
    ]
    return tuple(sorted(found, key=lambda mirror: (mirror[0].lower(), mirror[2], mirror[1])))


def docstrings(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name with its class, docstring) of each class and function, without properties."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Named) and not _is_property(node):
            name = f"{inside}{node.name}"
            yield name, ast.get_docstring(node) or ""
            yield from docstrings(node, f"{name}.")


def _is_property(node: _Named) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)


def table() -> str:
    """Return the counterparts with other names as a Markdown table, a row for each of upstream."""
    rows: dict[str, list[str]] = {}
    for upstream, name, file in mirrors():
        if upstream not in same_names(name):
            rows.setdefault(upstream, []).append(f"`{name}` in `{file}`")
    head = "| upstream | here |\n|---|---|"
    return "\n".join([head, *(f"| `{up}` | {'; '.join(ours)} |" for up, ours in rows.items())])


def rewritten(text: str) -> str:
    """Return a page with the table between its marks; ValueError if the marks are missing."""
    return between_marks(text, "mirrors", "python -m tests.mirrors docs", table())


def main(arguments: list[str]) -> None:
    """Print the table, or write it into the page of a folder."""
    if not arguments:
        print(table())
        return
    path = Path(arguments[0]) / PAGE
    path.write_text(rewritten(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
