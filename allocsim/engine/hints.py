"""What a user knows of the recorded program that its recording does not say.

Rule: what is said becomes a mark, as `allocsim record` would have made it, and wins over recorded
marks of the same kind.  What no mark can say, the first settings and that empty_cache is never
called, is asked of the hints by name; and the notes say what was said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.trace import Mark, MarkKind, Trace

__all__ = ["EMPTY_CACHE_WAYS", "Hints"]

_NEVER = "never"
EMPTY_CACHE_WAYS = (_NEVER, "recorded")


@dataclass(frozen=True, slots=True)
class Hints:
    """What the program did.

    memory_fraction: of its call of set_per_process_memory_fraction at its start, None for no hint.
    empty_cache: "never" if it never called empty_cache, whatever a recording looks like;
        "recorded" for what is recorded or follows from what is.
    settings: option strings that it set at run time, each with the number of entries before; with
        0 the string that it began with, since a recording names the last.
    Raises ConfigError for what cannot be.
    """

    memory_fraction: float | None = None
    empty_cache: str = "recorded"
    settings: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        fraction = self.memory_fraction
        if fraction is not None and not 0.0 <= fraction <= 1.0:
            raise ConfigError(f"memory fraction {fraction} is out of range; expected 0 to 1")
        if self.empty_cache not in EMPTY_CACHE_WAYS:
            known = " or ".join(repr(way) for way in EMPTY_CACHE_WAYS)
            raise ConfigError(f"empty_cache {self.empty_cache!r} is unknown; expected {known}")

    @property
    def empties(self) -> bool:
        """Whether the program may have called empty_cache."""
        return self.empty_cache != _NEVER

    @property
    def first_conf(self) -> str | None:
        """The option string that the program began with; None for no hint."""
        return next((conf for entry, conf in reversed(self.settings) if entry == 0), None)

    def marks(self, trace: Trace) -> tuple[Mark, ...]:
        """What is known of `trace`, recorded or told, in order.

        Raises ConfigError for settings of an entry that the trace does not have.
        """
        marks = [*self._told(trace), *(mark for mark in trace.marks if self._leaves(mark))]
        return tuple(sorted(marks, key=lambda mark: mark.entry))

    def _told(self, trace: Trace) -> Iterator[Mark]:
        if self.memory_fraction is not None:
            yield Mark(0, MarkKind.FRACTION, self.memory_fraction)
        for entry, conf in self.settings:
            if not 0 <= entry < len(trace):
                raise ConfigError(
                    f"settings of entry {entry}: device {trace.device} has no such entry; expected "
                    f"0 to {len(trace) - 1}"
                )
            if entry:
                yield Mark(entry, MarkKind.SETTINGS, conf)

    def _leaves(self, mark: Mark) -> bool:
        """Whether nothing told is about the same as a recorded mark."""
        if mark.kind is MarkKind.FRACTION:
            return self.memory_fraction is None
        if mark.kind is MarkKind.SETTINGS:
            return not self.settings
        return mark.kind is not MarkKind.EMPTY_CACHE or self.empties
