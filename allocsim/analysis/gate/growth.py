"""Change of memory by line of code.

The changes of all lines add up to the difference of requested bytes at the two peaks.  Lines that
moved are matched (`moved_lines`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allocsim.ownership import moved_lines, status_of

__all__ = ["Growth", "growth_of"]


@dataclass(frozen=True, slots=True)
class Growth:
    """Change of the memory that one line of code holds at the peak.

    The changes of all lines add up to the difference of the peaks.

    owner: name of the line now; "" if it holds no memory now.
    was: name of the line in the baseline, which differs if lines moved; "" if it held no memory.
    before, now: requested bytes at the peak.
    """

    owner: str
    was: str
    before: int
    now: int

    @property
    def bytes(self) -> int:
        """Change in bytes."""
        return self.now - self.before

    @property
    def status(self) -> str:
        """Status: "new", "gone", "larger", "smaller" or "same"."""
        return status_of(self.bytes, was_there=bool(self.was), is_there=bool(self.owner))


def growth_of(before: Mapping[str, int], now: Mapping[str, int]) -> tuple[Growth, ...]:
    """Return the changes of all lines, largest growth first.

    before, now: requested bytes at the peak, by line of code.
    """
    known = {name: name for name in now if name in before} | moved_lines(before, now)
    found = [
        Growth(name, known.get(name, ""), before.get(known.get(name, ""), 0), size)
        for name, size in now.items()
    ]
    gone = before.keys() - set(known.values())
    found += [Growth("", name, before[name], 0) for name in gone]
    return tuple(sorted(found, key=lambda each: (-each.bytes, each.owner, each.was)))
