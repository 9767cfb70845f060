"""Run golden cases again on the real allocator and compare all results with the stored ones.

Rule: a case has no stored result for a release that refused its options, stopped on an internal
error or gives different results each time.  The outcome for such a release is reported, but not
compared.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocsim.phantom import PhantomError, RefusedError
from allocsim.verify.comparison import list_difference
from allocsim.verify.real import RealAllocator
from allocsim.verify.script import RealAnswer, Script

_MESSAGES_KEPT = 20
_FIELDS = ("addresses", "trace", "segments")


@dataclass(frozen=True, slots=True)
class CaseCheck:
    """Result of one case.

    outcome: "equal" or "different"; if the case has no result for the release, "refused",
        "stopped" or "ran".
    detail: first difference, or error message of the release; "" if there is neither.
    """

    name: str
    outcome: str
    detail: str = ""


def load_case(path: Path) -> dict[str, Any]:
    """Return the case in a .json.gz file.  Raises PhantomError for an invalid file."""
    try:
        with gzip.open(path, "rt") as file:
            case: dict[str, Any] = json.load(file)
        return case
    except (OSError, EOFError, ValueError) as error:
        raise PhantomError(f"{path}: not a golden case ({error})") from None


def check_case(real: RealAllocator, case: dict[str, Any]) -> CaseCheck:
    """Run the script of a case and compare its results with those stored for the release."""
    name, version = case["name"], real.torch_version
    group = next((g for g in case["results"] if version in g["torch"]), None)
    try:
        results = real.run(Script.from_golden(case))
    except RefusedError as error:
        return CaseCheck(name, "refused" if group is None else "different", str(error))
    if group is None:
        return CaseCheck(name, "stopped" if results.stopped else "ran", _stop(results))
    texts = next(m["texts"] for m in group["messages"] if version in m["torch"])
    difference = first_difference(results, group, texts)
    return CaseCheck(name, "different" if difference else "equal", difference or "")


def _stop(results: RealAnswer) -> str:
    return "stopped at op {} with {}".format(*results.stopped) if results.stopped else ""


def first_difference(results: RealAnswer, expected: dict[str, Any], texts: list[str]) -> str | None:
    """Return the first difference as text; None if equal.

    expected, texts: stored results and error texts.
    """
    if results.stopped:
        return _stop(results)
    pairs = [(field, getattr(results, field), expected[field]) for field in _FIELDS]
    pairs.append(("messages", results.messages[:_MESSAGES_KEPT], texts))
    found = (list_difference(*pair) for pair in pairs)
    difference = next((str(one) for one in found if one is not None), None)
    for key, value in expected["stats"].items():
        if difference is None and results.stats.get(key) != value:
            return f"stats[{key}]: {results.stats.get(key)} where {value} was expected"
    return difference
