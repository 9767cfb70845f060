"""JSON Schemas of docs/schemas/, for tests.

Rule: schemas are closed, so a new key fails until the schema describes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

__all__ = ["FOLDER", "RECORDED", "SHARED", "keys", "schema_of", "schemas", "wrong_with"]

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
RECORDED = Path(__file__).parent / "schema_keys.txt"
"""Every key of every document; `python -m tests.schemas` adds new ones and removes none."""
SHARED = "shared"
"""Definitions that several schemas use; no command prints them."""

Schema = dict[str, Any]


@cache
def schemas() -> dict[str, Schema]:
    """Return the schema of each command by its name, and the shared schema."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def schema_of(command: str) -> Schema:
    """Return the schema of a command's `--json`."""
    return schemas()[command]


@cache
def _validator(command: str) -> Draft202012Validator:
    found = ((f"{name}.json", Resource.from_contents(each)) for name, each in schemas().items())
    registry: Registry[Schema] = Registry().with_resources(found)
    return Draft202012Validator({"$ref": f"{command}.json"}, registry=registry)


def wrong_with(command: str, document: object) -> str:
    """Return the first violation of the schema as place and sentence; "" if there is none."""
    error = best_match(_validator(command).iter_errors(document))
    return "" if error is None else f"{error.json_path}: {error.message[:300]}"


def keys() -> set[str]:
    """Return the path of every key of every document, as "stats.devices[].entries"."""
    return {
        path for name in schemas() if name != SHARED for path in _paths(name, schemas()[name], name)
    }


def _paths(name: str, schema: object, path: str) -> Iterator[str]:
    """Yield the paths of the keys that `schema` describes, below `path`.

    name: file of the schema.
    """
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        file, _, place = schema["$ref"].partition("#/$defs/")
        name = file.removesuffix(".json") or name
        yield from _paths(name, schemas()[name]["$defs"][place], path)
    for each in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _paths(name, each, path)
    yield from _paths(name, schema.get("items"), f"{path}[]")
    yield from _paths(name, schema.get("additionalProperties"), f"{path}{{}}")
    for key, value in schema.get("properties", {}).items():
        yield f"{path}.{key}"
        yield from _paths(name, value, f"{path}.{key}")


if __name__ == "__main__":
    lines = sorted(keys() | set(RECORDED.read_text().split()))
    RECORDED.write_text("".join(f"{line}\n" for line in lines))
