"""Errors of the phantom GPU.

Rule: `UnavailableError` means that something is missing, so a caller may skip a check.
`RefusedError` comes from the real allocator and must be reported.
"""

from __future__ import annotations

from allocsim.errors import AllocsimError

__all__ = ["PhantomError", "ScriptError", "UnavailableError", "RefusedError"]


class PhantomError(AllocsimError):
    """Base class of the errors of allocsim.phantom."""


class ScriptError(PhantomError, ValueError):
    """An op script contains an unknown op."""


class UnavailableError(PhantomError):
    """A requirement is missing: a wheel, a compiler, the network or Linux."""


class RefusedError(PhantomError):
    """The real allocator refused its settings or ended while running a script."""
