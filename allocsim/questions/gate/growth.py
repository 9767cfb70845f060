"""Which lines of code hold more than they did.

Rule: the changes of all lines add up to the difference of what is asked for at the two peaks.  A
line whose number alone is another is the same line (`moved_lines`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allocsim.owners import moved_lines, status_of

__all__ = ["Growth", "growth_of"]


@dataclass(frozen=True, slots=True)
class Growth:
    """One line.  was: its name before, "" of one that is new; owner: its name now, "" of one gone.

    before, now: bytes that it asked for and held at the peak.
    """

    owner: str
    was: str
    before: int
    now: int

    @property
    def bytes(self) -> int:
        """By how many it holds more."""
        return self.now - self.before

    @property
    def status(self) -> str:
        """See `status_of`."""
        return status_of(self.bytes, was_there=bool(self.was), is_there=bool(self.owner))


def growth_of(before: Mapping[str, int], now: Mapping[str, int]) -> tuple[Growth, ...]:
    """The lines of both, those that grew most first."""
    known = {name: name for name in now if name in before} | moved_lines(before, now)
    found = [
        Growth(name, known.get(name, ""), before.get(known.get(name, ""), 0), size)
        for name, size in now.items()
    ]
    gone = before.keys() - set(known.values())
    found += [Growth("", name, before[name], 0) for name in gone]
    return tuple(sorted(found, key=lambda each: (-each.bytes, each.owner, each.was)))
