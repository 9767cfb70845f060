"""Golden cases: a case is a script, and a result is its effect in one release.

The copy under `data/` is the original in another encoding; nothing is computed, and `unpack` is the
exact inverse of `pack.pack`.  A case is a dictionary as PROVENANCE.md describes, but its results
stay packed until `unpack_result`.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = [
    "ACTIONS",
    "BASIC",
    "ALL",
    "POOLED",
    "Case",
    "Result",
    "is_basic",
    "load",
    "names",
    "releases",
    "results",
]

Case = dict[str, Any]
Result = dict[str, Any]

BASIC: Final = 708
ALL: Final = 1123
POOLED = ("pools", "scopes")  # families that use private pools
DATA = Path(__file__).parent / "data"
ACTIONS = {
    "alloc": "a",
    "free_requested": "r",
    "free_completed": "c",
    "segment_alloc": "s",
    "segment_free": "f",
    "segment_map": "m",
    "segment_unmap": "u",
    "oom": "o",
    "snapshot": "p",
}


def is_basic(case: Case) -> bool:
    """Return True for a case without expandable segments and private pools."""
    return "expandable" not in case["conf"] and family(case) not in POOLED


def family(case: Case) -> str:
    return str(case["name"].split("-")[0])


def load(only: str | None = None) -> Iterator[Case]:
    """Return all cases, or those of one family, in the order of the original files."""
    for path in sorted(DATA.glob("*.json.xz")):
        if only is None or path.name == f"{only}.json.xz":
            yield from json.loads(lzma.decompress(path.read_bytes()))


def names() -> list[str]:
    """Return the families that have a file."""
    return sorted(path.name.removesuffix(".json.xz") for path in DATA.glob("*.json.xz"))


def releases(case: Case) -> list[str]:
    """Return the releases that ran the case."""
    return [release for result in case["results"] for release in result["torch"]]


def results(case: Case) -> Iterator[tuple[str, Result]]:
    """Yield (release, result) for each release that ran the case."""
    for packed in case["results"]:
        result = unpack_result(case["ops"], packed)
        for release in packed["torch"]:
            yield release, result


def unpack(packed: Case) -> Case:
    """Return the case as it was before packing."""
    return {**packed, "results": [unpack_result(packed["ops"], r) for r in packed["results"]]}


def unpack_result(ops: list[Any], packed: Result) -> Result:
    """Fill in the parts of a result that follow from ops and placements."""
    allocations = [op for op in ops if op[0] == "a"]
    words = {letter: action for action, letter in ACTIONS.items()}
    actions = [words[letter] for letter in packed["actions"]]
    failed = set(packed["failed"])
    served = iter([op for i, op in enumerate(allocations) if i not in failed])
    placed, rest = iter(packed["places"]), iter(packed["rest"])
    where: dict[int, int] = {}
    held: dict[int, list[int]] = {}
    freed = (op[1] for op in ops if op[0] == "f")
    trace: list[list[Any]] = []
    for action in actions:
        if action == "alloc":
            _, name, size, stream = next(served)
            address = next(placed)
            where[name], held[address] = address, [size, stream]
        elif action == "free_requested":
            address = where[next(name for name in freed if name in where)]
        else:
            address = next(placed)
        tail = held[address] if action[:4] in ("allo", "free") else next(rest)
        trace.append([action, address, *tail])
    found = {key: packed[key] for key in ("torch", "stats", "messages")}
    heads = iter([entry[1] for entry in trace if entry[0] == "alloc"])
    found["addresses"] = [None if i in failed else next(heads) for i in range(len(allocations))]
    found["segments"] = packed["segments"]
    found["trace"] = trace
    return found
