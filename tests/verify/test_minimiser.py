"""The minimised script has only ops that are needed."""

from __future__ import annotations

from allocsim.units import GIB
from allocsim.verify import Script
from allocsim.verify.comparison import shortest
from allocsim.verify.script import Op


def test_minimised_script_has_only_the_ops_that_matter() -> None:
    ops: list[Op] = [["a", n, 512, 0] for n in range(100)]

    def holds(script: Script) -> bool:
        return {3, 50, 97} <= {op[1] for op in script.ops}

    assert [op[1] for op in shortest(Script(ops, GIB), holds).ops] == [3, 50, 97]


def test_minimised_removes_a_pair_after_the_rest() -> None:
    """B can only be removed after a, and a only while c, which is always removable, is gone."""
    ops: list[Op] = [["b"], ["a"], ["c"], ["d"]]

    def holds(script: Script) -> bool:
        left = "".join(op[0] for op in script.ops)
        return left in ("bacd", "bad", "bd", "d")

    assert shortest(Script(ops, GIB), holds).ops == [["d"]]


def test_minimised_script_keeps_its_settings() -> None:
    script = Script([["S"], ["e"]], 7, "backend:native", "firstfit", 4096)
    short = shortest(script, lambda _: True)
    assert short == Script(short.ops, 7, "backend:native", "firstfit", 4096)
    assert len(short.ops) == 1
