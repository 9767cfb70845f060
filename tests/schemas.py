"""The JSON Schemas of docs/schemas/, as a test asks them.

Rule: a document is what its schema says and nothing else, so that a new key fails until the schema
says what it means.
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
"""What several schemas refer to; no command prints it."""

Schema = dict[str, Any]


@cache
def schemas() -> dict[str, Schema]:
    """Every schema by the name of its command, and the shared one."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def schema_of(command: str) -> Schema:
    """What `--json` of a command prints."""
    return schemas()[command]


@cache
def _validator(command: str) -> Draft202012Validator:
    found = ((f"{name}.json", Resource.from_contents(each)) for name, each in schemas().items())
    registry: Registry[Schema] = Registry().with_resources(found)
    return Draft202012Validator({"$ref": f"{command}.json"}, registry=registry)


def wrong_with(command: str, document: object) -> str:
    """What of `document` is not as the schema says: a place and a sentence; "" for nothing."""
    error = best_match(_validator(command).iter_errors(document))
    return "" if error is None else f"{error.json_path}: {error.message[:300]}"
