"""A long script made short while something stays true of it.

Rule: pieces are left out from large to small, each only if the script without it still has
what is looked for; no single op can be left out of the result.
"""

from __future__ import annotations

from collections.abc import Callable

from allocsim.questions.crosscheck.script import Op, Script

__all__ = ["shortest"]


def shortest(script: Script, still_holds: Callable[[Script], bool]) -> Script:
    """A script of few ops for which `still_holds`; `script` itself must be one."""
    ops = list(script.ops)
    piece = max(1, len(ops) // 2)
    while piece:
        shorter = _without_pieces(script, ops, piece, still_holds)
        # Ops that needed one another go one by one only once the others are gone.
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
