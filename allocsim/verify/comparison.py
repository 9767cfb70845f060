"""First difference between the model's results and real ones.

Rule: everything is compared, in an order that puts a difference near its cause first: the op at
which a run stopped, addresses, entries, segments, texts, statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Difference", "Answer", "first_difference", "list_difference"]

_LISTS = ("addresses", "trace", "segments", "messages")


class Answer(Protocol):
    """Common interface of `ModelAnswer` and `RealAnswer`."""

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
    """A value of the model and the real value at the same position.

    field: name of the result's field.
    at: index in a list or name of a statistic; None for a whole field.
    ours, expected: the values; None if the list is too short or the statistic is missing.
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
        """Field and statistic, which a minimised script must preserve."""
        return self.field, self.at if isinstance(self.at, str) else None


def first_difference(ours: Answer, expected: Answer) -> Difference | None:
    """Return the first difference, None if equal; texts of stops are not compared."""
    stops = [None if answer.stopped is None else answer.stopped[0] for answer in (ours, expected)]
    if stops[0] != stops[1]:
        return Difference("stopped", None, ours.stopped, expected.stopped)
    for field in _LISTS:
        if found := list_difference(field, getattr(ours, field), getattr(expected, field)):
            return found
    return _statistic(ours.stats, expected.stats)


def list_difference(field: str, ours: Sequence[Any], expected: Sequence[Any]) -> Difference | None:
    """Return the first difference between two lists, None if equal."""
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
