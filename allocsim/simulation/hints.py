"""Facts about the recorded program that the user knows and the recording does not contain.

Hints become marks, and replace recorded marks of the same kind.  A mark is a note in the recording
that the program made a call which leaves no entry; `allocsim record` writes marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.recording import Mark, MarkKind, Trace

_NEVER = "never"
EMPTY_CACHE_WAYS = (_NEVER, "recorded")


@dataclass(frozen=True, slots=True)
class Hints:
    """Calls of the program, as the user gives them.

    memory_fraction: argument of set_per_process_memory_fraction at the start; None for no hint.
    empty_cache: "never" if the program never called empty_cache, even if the recording suggests
        it; "recorded" to use recorded and inferred calls.
    settings: confs set at run time, as (number of entries before the call, conf).  Number 0 is for
        the conf at the start, because a recording contains only the last conf.
    Raises ConfigError for a `memory_fraction` or an `empty_cache` that is not valid.
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
        """True if the program may have called empty_cache."""
        return self.empty_cache != _NEVER

    @property
    def first_conf(self) -> str | None:
        """Conf at the start of the program; None for no hint."""
        return next((conf for entry, conf in reversed(self.settings) if entry == 0), None)

    def marks(self, trace: Trace) -> tuple[Mark, ...]:
        """Return the recorded marks of `trace` and the marks from hints, ordered by entry.

        Raises ConfigError for settings at an entry that the trace does not have.
        """
        marks = [*self._own_marks(trace), *(mark for mark in trace.marks if self._keeps(mark))]
        return tuple(sorted(marks, key=lambda mark: mark.entry))

    def _own_marks(self, trace: Trace) -> Iterator[Mark]:
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

    def _keeps(self, mark: Mark) -> bool:
        """Return True if no hint replaces the recorded mark."""
        if mark.kind is MarkKind.FRACTION:
            return self.memory_fraction is None
        if mark.kind is MarkKind.SETTINGS:
            return not self.settings
        return mark.kind is not MarkKind.EMPTY_CACHE or self.empties
