"""Run one script on allocsim's model and on real PyTorch, and compare the results.

A script is a list of allocator calls, named ops (`script.py`).  All results must be equal:
addresses, entries, segments, error texts and statistics.

A script with different results is minimised by removing groups of consecutive ops, and can be
written as a test that needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from allocsim.core import find_release
from allocsim.errors import ConfigError, RefusedError, ScriptError, UpstreamAssertionError
from allocsim.verify.player import play, play_defined
from allocsim.verify.script import ModelAnswer, Op, RealAnswer, Script

_LISTS = ("addresses", "trace", "segments", "messages")


@dataclass(frozen=True, slots=True)
class Difference:
    """Value of the model that differs from the value of real PyTorch.

    field: name of the field of the results, such as "addresses".
    at: index in the field's list, or name of the statistic; None if the whole field differs.
    ours, expected: value of the model and value of real PyTorch; None if missing.
    """

    field: str
    at: int | str | None
    ours: Any
    expected: Any

    def __str__(self) -> str:
        where = self.field if self.at is None else f"{self.field}[{self.at}]"
        return f"{where}: {self.ours} where {self.expected} was expected"

    @property
    def kind(self) -> tuple[str, str | None]:
        """Kind of the difference: the field, and the name of the statistic or None."""
        return self.field, self.at if isinstance(self.at, str) else None


def first_difference(
    ours: ModelAnswer | RealAnswer, expected: ModelAnswer | RealAnswer
) -> Difference | None:
    """Return the first difference between two results of a script; None if they are equal.

    ours, expected: results of the model, and results of real PyTorch.
    The texts of errors that stopped the script are not compared.
    """
    stops = [None if answer.stopped is None else answer.stopped[0] for answer in (ours, expected)]
    if stops[0] != stops[1]:
        return Difference("stopped", None, ours.stopped, expected.stopped)
    for name in _LISTS:
        if found := list_difference(name, getattr(ours, name), getattr(expected, name)):
            return found
    return _statistic(ours.stats, expected.stats)


def list_difference(field: str, ours: Sequence[Any], expected: Sequence[Any]) -> Difference | None:
    """Return the first item that differs between two lists; None if the lists are equal.

    field: name of the lists in the results, such as "addresses".
    """
    for at, (one, other) in enumerate(zip(ours, expected, strict=False)):
        if one != other:
            return Difference(field, at, one, other)
    if len(ours) == len(expected):
        return None
    at = min(len(ours), len(expected))
    return Difference(
        field, at, *(answer[at] if at < len(answer) else None for answer in (ours, expected))
    )


def _statistic(ours: Mapping[str, Any], expected: Mapping[str, Any]) -> Difference | None:
    for key in sorted({*ours, *expected}):
        if ours.get(key) != expected.get(key):
            return Difference("stats", key, ours.get(key), expected.get(key))
    return None


Judge = Callable[[Script], "Divergence | None"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Script with different results in the model and in real PyTorch.

    release: PyTorch release of both.
    difference: first difference of the results.
    expected: results of real PyTorch in the field that differs.
    arguments: keyword arguments of `player.play` with which the model ran the script.
    """

    release: str
    script: Script
    difference: Difference
    expected: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def as_test(self) -> str:
        """Return the source code of a test that runs the script and fails while results differ."""
        script, name = self.script, self.release.replace(".", "_")
        ops = "\n".join(f"        {list(op)!r}," for op in script.ops)
        conditions = [script.device_memory, script.conf, script.address_policy]
        if script.base_address:
            conditions.append(script.base_address)
        arguments = [repr(condition) for condition in conditions]
        if script.handles:
            arguments.append(f"handles={dict(script.handles)!r}")
        if script.is_host:
            arguments.append("is_host=True")
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
    """Return a shorter script with the same kind of difference (field and statistic) as `found`.

    judge: function that runs a script on the model and on real PyTorch, and returns the divergence
        or None.
    """

    def still_differs(script: Script) -> bool:
        try:
            other = judge(script)
        except (RefusedError, ScriptError):  # e.g. a free whose allocation was removed
            return False
        return other is not None and other.difference.kind == found.difference.kind

    return judge(shortest(found.script, still_differs)) or found


def shortest(script: Script, still_holds: Callable[[Script], bool]) -> Script:
    """Remove ops until every further removal would make `still_holds` False; return the script.

    still_holds: function that returns True for a script that still shows the difference.
    """
    ops = list(script.ops)
    piece = max(1, len(ops) // 2)
    while piece:
        shorter = _without_pieces(script, ops, piece, still_holds)
        # The removal of an op may make another op removable, so single ops are tried again.
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


_ROWS: Mapping[str, Any] = {"in_rows": True}
_ASSERTED = "equal up to an internal assertion that stops both"


class Real(Protocol):
    """Interface of a real PyTorch allocator that runs scripts.

    torch_version: PyTorch version, such as "2.15.0".
    """

    torch_version: str

    def run(self, script: Script) -> RealAnswer:
        """Run a script; raise RefusedError if PyTorch refuses the conf or its process dies."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of comparing the model with real PyTorch on one script.

    script: the compared ops (allocator calls), which may be only the first of the script.
    addresses: address that the model returned for each request; None for a failed request.
    end: result as text, such as "equal" or "settings refused by both".
    divergence: script with its first difference; None if all results are equal.
    """

    script: Script
    addresses: list[int | None]
    end: str
    divergence: Divergence | None = None


def judge(real: Real, script: Script) -> Judgement:
    """Run a script on the model and on real PyTorch, and compare the results.

    The model runs it twice: call by call, and with the code of a replay (core/fast_path.py).  If
    the script fails an assertion in real PyTorch, only the ops before it are compared.
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
    if not expected.conditions and not script.is_host:
        ways.append((play(script, release, **_ROWS), _ROWS))
    for answer, arguments in ways:
        if found := first_difference(answer, expected):
            if script.is_host and _equal_again(real, script, answer):
                break
            return _diverged(release, script, found, getattr(expected, found.field), arguments)
    return Judgement(_as_run(script, ours), ours.addresses, _end(ours, undefined))


_TRIES = 5
_THREAD = "pinned_use_background_threads:True"


def _equal_again(real: Real, script: Script, ours: ModelAnswer) -> bool:
    # With a background thread, PyTorch's results depend on time.  Results count as equal if one of
    # several runs gives the model's results.
    if not any(_THREAD in conf for conf in (script.conf, *_confs(script))):
        return False
    return any(first_difference(ours, real.run(script)) is None for _ in range(_TRIES))


def _confs(script: Script) -> list[str]:
    return [op[1] for op in script.ops if op[0] == "c"]


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
