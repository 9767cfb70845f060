"""The exercises: what was filled in, compared with what the model does.

Rule: nothing is told of an answer that is not filled in, unless all are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allocsim import Decision

__all__ = ["check", "rules_of"]


def check(answers: object, right: Mapping[str, object], why: Mapping[str, Sequence[str]]) -> None:
    """Print of each answer whether it is right, and where it is not, what is right and why.

    answers: by name, None where nothing is filled in; or "show", to see them all.  right: by the
    same names.  why: the rules behind each, a line each.
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
    """The rules of one decision, a line each, as `allocsim step` tells them."""
    return [f"{rule.name:<14}{rule.text}" for rule in decision.rules]


def _tell(first: str, reasons: Sequence[str]) -> None:
    print("\n    ".join([first, *reasons]))


def _shown(value: object) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_number else str(value)
