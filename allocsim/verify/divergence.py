"""Minimise a script on which the model and real PyTorch differ, and write it as a test.

Rule: the test needs no PyTorch.  It runs the script on the model and expects the results of real
PyTorch, so it fails until the model is corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from allocsim.phantom import RefusedError, ScriptError
from allocsim.verify.comparison import Difference
from allocsim.verify.minimiser import shortest
from allocsim.verify.script import Script

__all__ = ["Divergence", "minimised"]

Judge = Callable[[Script], "Divergence | None"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """A script on which the model differs from real PyTorch.

    release: release of PyTorch.
    difference: first difference.
    expected: complete value, in real PyTorch, of the field that differs.
    arguments: keyword arguments of `play` with which the model differs.
    """

    release: str
    script: Script
    difference: Difference
    expected: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def as_test(self) -> str:
        """Return the source code of a test that fails until the model is corrected."""
        script, name = self.script, self.release.replace(".", "_")
        ops = "\n".join(f"        {list(op)!r}," for op in script.ops)
        conditions = [script.device_memory, script.conf, script.address_policy]
        if script.base_address:
            conditions.append(script.base_address)
        arguments = [repr(condition) for condition in conditions]
        if script.handles:
            arguments.append(f"handles={dict(script.handles)!r}")
        given = "".join(f", {key}={value!r}" for key, value in self.arguments.items())
        return (
            "from allocsim.verify import Script\n"
            "from allocsim.verify.player import play\n\n\n"
            f"def test_a_divergence_from_{name}() -> None:\n"
            f"    # {self.difference.field} of torch {self.release} itself\n"
            f"    ops = [\n{ops}\n    ]\n"
            f"    script = Script(ops, {', '.join(arguments)})\n"
            f'    outcome = play(script, "{self.release}"{given})\n'
            f"    {self._assertion()}\n"
        )

    def _assertion(self) -> str:
        what = self.difference
        if what.field == "refused":
            return f"assert False, {f'torch: {what.expected}; the model: {what.ours}'!r}"
        if what.field == "stopped":
            at = None if what.expected is None else what.expected[0]
            return f"assert (outcome.stopped and outcome.stopped[0]) == {at!r}"
        if what.field == "stats":
            return f"assert outcome.stats.get({what.at!r}) == {what.expected!r}"
        return f"assert outcome.{what.field} == {self.expected!r}"


def minimised(found: Divergence, judge: Judge) -> Divergence:
    """Return a divergence with fewer ops whose first difference is of the same kind.

    judge: function that compares a script and returns its divergence; None if equal.
    """

    def still_differs(script: Script) -> bool:
        try:
            other = judge(script)
        except (RefusedError, ScriptError):  # e.g. a free whose allocation was removed
            return False
        return other is not None and other.difference.kind == found.difference.kind

    return judge(shortest(found.script, still_differs)) or found
