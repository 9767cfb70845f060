"""Run one script on the model and on real PyTorch and compare all results.

Rule: all results must be equal.  If the behaviour of PyTorch is undefined from some op on, the
script is compared up to that op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from allocsim.core import find_release
from allocsim.errors import ConfigError, UpstreamAssertionError
from allocsim.phantom import RefusedError
from allocsim.verify.comparison import Difference, first_difference
from allocsim.verify.divergence import Divergence
from allocsim.verify.player import ModelAnswer, play, play_defined
from allocsim.verify.script import RealAnswer, Script

__all__ = ["Real", "Judgement", "judge"]

_ROWS: Mapping[str, Any] = {"in_rows": True}
_ASSERTED = "equal up to an internal assertion that stops both"


class Real(Protocol):
    """Allocator of real PyTorch.

    torch_version: version, such as "2.15.0".
    """

    torch_version: str

    def run(self, script: Script) -> RealAnswer:
        """Return the results; raise RefusedError if PyTorch refuses the conf or dies."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of the comparison of one script.

    script: the compared part of the script.
    addresses: address of each allocation; None if it failed.
    end: reason for the end of the comparison, as text.
    divergence: difference found; None if all results are equal.
    """

    script: Script
    addresses: list[int | None]
    end: str
    divergence: Divergence | None = None


def judge(real: Real, script: Script) -> Judgement:
    """Compare a script on the model and on real PyTorch.

    The model runs it twice: call by call, and with the code of a replay (core/fast_path.py).  A
    failed assertion of PyTorch leaves it in the middle of an op, in an unspecified state.  So only
    the number of that op is compared, and the results of the ops before it.
    """
    release = find_release(real.torch_version).version
    try:
        script, ours, undefined = play_defined(script, release)
    except ConfigError as error:
        return _judge_refusal(real, script, str(error))
    try:
        expected = real.run(script)
    except RefusedError as refusal:
        return _diverged(release, script, Difference("refused", None, ours.stopped, str(refusal)))
    if expected.conditions:
        ours = play(script, release, **expected.conditions)
    at, reason = ours.stopped or (0, None)
    if (
        isinstance(reason, UpstreamAssertionError)
        and expected.stopped
        and expected.stopped[0] == at
    ):
        verdict = judge(real, script.with_ops(script.ops[:at]))
        return verdict if verdict.divergence else replace(verdict, end=_ASSERTED)
    ways = [(ours, expected.conditions)]
    if not expected.conditions:
        ways.append((play(script, release, **_ROWS), _ROWS))
    for answer, arguments in ways:
        if found := first_difference(answer, expected):
            return _diverged(release, script, found, getattr(expected, found.field), arguments)
    return Judgement(_as_run(script, ours), ours.addresses, _end(ours, undefined))


def _as_run(script: Script, ours: ModelAnswer) -> Script:
    return script if ours.stopped is None else script.with_ops(script.ops[: ours.stopped[0] + 1])


def _diverged(
    release: str,
    script: Script,
    difference: Difference,
    expected: Any = None,
    arguments: Mapping[str, Any] | None = None,
) -> Judgement:
    found = Divergence(release, script, difference, expected, arguments or {})
    return Judgement(script, [], "diverged", found)


def _judge_refusal(real: Real, script: Script, reason: str) -> Judgement:
    """Compare a script whose settings the model refuses: real PyTorch must refuse them too."""
    try:
        real.run(script)
    except RefusedError:
        return Judgement(script.with_ops(()), [], "settings refused by both")
    release = find_release(real.torch_version).version
    return _diverged(release, script, Difference("refused", None, reason, None))


def _end(ours: ModelAnswer, undefined: object) -> str:
    if undefined is not None:
        return "equal up to undefined behaviour"
    return "equal" if ours.stopped is None else "equal, and stopped by the same refusal"
