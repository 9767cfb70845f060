"""Exceptions of allocsim, as a tree of classes.

    AllocsimError
      RecordingError            invalid file: path, entry, value and what was expected
      ConfigError               invalid setting; also a ValueError
      OutOfMemoryError          simulated device out of memory, PyTorch's text; a RuntimeError
      UpstreamError             error of PyTorch itself, other than out of memory
        UpstreamAssertionError  internal assertion of PyTorch
        DriverRefusalError      refusal of a call by the CUDA driver; also a RuntimeError
      UndefinedBehaviorError    undefined behavior in PyTorch, which the model does not guess
      InvariantError            bug in allocsim, with violated rule and state; please report it
      PhantomError              error of real PyTorch on a phantom GPU, or of its preparation
        ScriptError             invalid op script (a list of allocator calls); also a ValueError
        UnavailableError        missing requirement: a wheel, a compiler, PyTorch or Linux
        RefusedError            settings that real PyTorch refused, or a script that it ended

A message is one sentence that names the cause and the value.  An operation that raises one of these
has changed no state, except for changes that upstream makes before it fails.
"""

from __future__ import annotations

__all__ = [
    "AllocsimError",
    "RecordingError",
    "ConfigError",
    "OutOfMemoryError",
    "UpstreamError",
    "UpstreamAssertionError",
    "DriverRefusalError",
    "UndefinedBehaviorError",
    "InvariantError",
    "PhantomError",
    "ScriptError",
    "UnavailableError",
    "RefusedError",
]


class AllocsimError(Exception):
    """Base class of all errors that allocsim raises deliberately."""


class RecordingError(AllocsimError):
    """Error in a file that cannot be read or replayed as a recording."""

    def __init__(self, path: str, what: str, *, entry: int | None = None) -> None:
        where = f"{path}: entry {entry}" if entry is not None else path
        super().__init__(f"{where}: {what}")
        self.path = path
        self.entry = entry


class ConfigError(AllocsimError, ValueError):
    """Error in an option string, PyTorch release or device that PyTorch or the model refuses."""


class OutOfMemoryError(AllocsimError, RuntimeError):
    """Simulated device out of memory; the text is that of the modelled PyTorch release.

    requested_bytes: bytes of the failed request before rounding.
    rounded_bytes: bytes of the request after rounding, as in a recorded `oom` entry.
    tried_bytes: bytes that PyTorch's text reports as tried; 0 if the text has no such size.
    """

    def __init__(
        self, text: str, *, requested_bytes: int, rounded_bytes: int, tried_bytes: int
    ) -> None:
        super().__init__(text)
        self.requested_bytes = requested_bytes
        self.rounded_bytes = rounded_bytes
        self.tried_bytes = tried_bytes


class UpstreamError(AllocsimError):
    """Error that the modelled PyTorch release would raise, other than out of memory."""


class UpstreamAssertionError(UpstreamError):
    """Internal assertion that would fail in the modelled PyTorch release."""


class DriverRefusalError(UpstreamError, RuntimeError):
    """Refusal of a call by the CUDA driver; the message has PyTorch's text and the refused call."""

    TEXT = "CUDA driver error: invalid argument"

    def __init__(self, what: str) -> None:
        super().__init__(f"{self.TEXT} ({what})")


class UndefinedBehaviorError(AllocsimError):
    """Undefined behavior of the modelled PyTorch release, such as use after free."""


class InvariantError(AllocsimError):
    """Violated invariant of the model: a bug in allocsim, not an invalid input."""


class PhantomError(AllocsimError):
    """Base class of errors in preparing and running real PyTorch on a phantom GPU.

    A phantom GPU is a set of stubs of the CUDA libraries that simulate a GPU.
    """


class ScriptError(PhantomError, ValueError):
    """Unknown or invalid call in an op script, a list of calls for the real allocator."""


class UnavailableError(PhantomError):
    """Missing requirement: a wheel, a compiler, the network, PyTorch or Linux."""


class RefusedError(PhantomError):
    """Allocator settings that real PyTorch refused, or allocator calls that ended its process."""
