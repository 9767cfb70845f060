"""Minimise a script that has a given property.

Rule: groups of consecutive ops are removed if the script still has the property without them, large
groups first.  No single op of the result can be removed.
"""

from __future__ import annotations

from collections.abc import Callable

from allocsim.verify.script import Op, Script

__all__ = ["shortest"]


def shortest(script: Script, still_holds: Callable[[Script], bool]) -> Script:
    """Return a shorter script for which `still_holds` returns True, as it does for `script`."""
    ops = list(script.ops)
    piece = max(1, len(ops) // 2)
    while piece:
        shorter = _without_pieces(script, ops, piece, still_holds)
        # Without one op another op may become removable, so single ops are tried again.
        if piece > 1 or len(shorter) == len(ops):
            piece //= 2
        ops = shorter
    return script.with_ops(ops)


def _without_pieces(
    script: Script, ops: list[Op], piece: int, still_holds: Callable[[Script], bool]
) -> list[Op]:
    at = 0
    while at < len(ops):
        fewer = ops[:at] + ops[at + piece :]
        if fewer and still_holds(script.with_ops(fewer)):
            ops = fewer
        else:
            at += piece
    return ops
