"""Find the first difference between the results of the model and of real PyTorch.

Rule: all results are compared, and first those that show a difference near its cause: the op at
which a script stopped, addresses, entries, segments, error texts, statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Difference", "Answer", "first_difference", "list_difference"]

_LISTS = ("addresses", "trace", "segments", "messages")


class Answer(Protocol):
    """Results of a script; `ModelAnswer` and `RealAnswer` have these fields."""

    @property
    def addresses(self) -> list[int | None]: ...
    @property
    def trace(self) -> list[list[Any]]: ...
    @property
    def segments(self) -> list[dict[str, Any]]: ...
    @property
    def messages(self) -> list[str]: ...
    @property
    def stats(self) -> dict[str, Any]: ...
    @property
    def stopped(self) -> tuple[int, Any] | None: ...


@dataclass(frozen=True, slots=True)
class Difference:
    """A result of the model that differs from the result of real PyTorch.

    field: name of the field of the results.
    at: index in a list or name of a statistic; None if the field as a whole differs.
    ours, expected: value of the model and of real PyTorch; None if missing.
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
        """Field and name of the statistic, which must be the same after minimisation."""
        return self.field, self.at if isinstance(self.at, str) else None


def first_difference(ours: Answer, expected: Answer) -> Difference | None:
    """Return the first difference between two results; None if they are equal.

    The texts of the errors that stopped the scripts are not compared.
    """
    stops = [None if answer.stopped is None else answer.stopped[0] for answer in (ours, expected)]
    if stops[0] != stops[1]:
        return Difference("stopped", None, ours.stopped, expected.stopped)
    for field in _LISTS:
        if found := list_difference(field, getattr(ours, field), getattr(expected, field)):
            return found
    return _statistic(ours.stats, expected.stats)


def list_difference(field: str, ours: Sequence[Any], expected: Sequence[Any]) -> Difference | None:
    """Return the first difference between two lists; None if they are equal.

    field: name of the field of the results, for the returned difference.
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
