"""What can go wrong, grouped by who must act.

    AllocsimError
      RecordingError            the file is wrong      path, entry, value, what was expected
      ConfigError               a setting is wrong     also a ValueError
      OutOfMemoryError          the simulated GPU is full, in PyTorch's own words; a RuntimeError
      UpstreamAssertionError    PyTorch itself stops here on an internal assertion
      UndefinedBehaviorError    what PyTorch does here is undefined; the model refuses to guess
      InvariantError            we are wrong           number of the rule, dump; please report it

A message is one sentence that names the culprit and the value.  An operation that raises one
of these has changed nothing but what upstream itself changes before failing.
"""

from __future__ import annotations

__all__ = [
    "AllocsimError",
    "RecordingError",
    "ConfigError",
    "OutOfMemoryError",
    "UpstreamAssertionError",
    "UndefinedBehaviorError",
    "InvariantError",
]


class AllocsimError(Exception):
    """The base of every error that allocsim raises on purpose."""


class RecordingError(AllocsimError):
    """A file that cannot be read or replayed as a recording."""

    def __init__(self, path: str, what: str, *, entry: int | None = None) -> None:
        where = f"{path}: entry {entry}" if entry is not None else path
        super().__init__(f"{where}: {what}")
        self.path = path
        self.entry = entry


class ConfigError(AllocsimError, ValueError):
    """An option string, release or device description that PyTorch or the model refuses."""


class OutOfMemoryError(AllocsimError, RuntimeError):
    """The simulated device is full.  The text is that of the release being modelled.

    requested_bytes: the raw request.  rounded_bytes: after rounding, what a recorded `oom`
    entry carries.  tried_bytes: the segment that was tried, what the text prints; 0 where the
    text prints none.
    """

    def __init__(
        self, text: str, *, requested_bytes: int, rounded_bytes: int, tried_bytes: int
    ) -> None:
        super().__init__(text)
        self.requested_bytes = requested_bytes
        self.rounded_bytes = rounded_bytes
        self.tried_bytes = tried_bytes


class UpstreamAssertionError(AllocsimError):
    """PyTorch of the modelled release stops here on an internal assertion."""


class UndefinedBehaviorError(AllocsimError):
    """PyTorch of the modelled release runs into undefined behaviour here (use after free)."""


class InvariantError(AllocsimError):
    """The model broke one of its own rules: a defect of allocsim, not of the input."""
