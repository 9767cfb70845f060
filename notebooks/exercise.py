"""Exercises: comparison of the reader's answers with the model.

Rule: a missing answer is not revealed unless the reader requests all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allocsim.results import Decision

__all__ = ["check", "rules_of"]


def check(answers: object, right: Mapping[str, object], why: Mapping[str, Sequence[str]]) -> None:
    """Print for each answer if it is right; if not, print the right one and the reasons.

    answers: by name, None if not filled in; or "show" to see all of them.
    right: correct values by the same names.
    why: rules behind each answer, one line each.
    """
    if answers == "show":
        for name in right:
            _tell(f"{name}: {_shown(right[name])}", why[name])
        return
    filled = answers if isinstance(answers, Mapping) else {}
    if all(filled.get(name) is None for name in right):
        print("Fill in your answers, then run this cell again.")
        return
    for name in right:
        if filled.get(name) is None:
            print(f"{name}: not filled in yet")
        elif filled[name] == right[name]:
            print(f"{name}: right")
        else:
            _tell(f"{name}: no, {_shown(right[name])}", why[name])


def rules_of(decision: Decision) -> list[str]:
    """Return the rules of one decision, one line each, as `allocsim step` prints them."""
    return [f"{rule.name:<14}{rule.text}" for rule in decision.rules]


def _tell(first: str, reasons: Sequence[str]) -> None:
    print("\n    ".join([first, *reasons]))


def _shown(value: object) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_number else str(value)
