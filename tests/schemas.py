"""JSON Schemas of docs/schemas/, for tests.

Rule: schemas are closed, so a new key fails until the schema describes it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

__all__ = ["FOLDER", "SHARED", "schema_of", "schemas", "wrong_with"]

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
SHARED = "shared"
"""Definitions that several schemas use; no command prints them."""

Schema = dict[str, Any]


@cache
def schemas() -> dict[str, Schema]:
    """Return every schema by the name of its command, and the shared one."""
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
