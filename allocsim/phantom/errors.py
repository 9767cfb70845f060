"""Errors of the phantom GPU.

Rule: after an `UnavailableError` a caller may skip a check, because a tool is missing.  A
`RefusedError` comes from the real allocator and must be reported.
"""

from __future__ import annotations

from allocsim.errors import AllocsimError

__all__ = ["PhantomError", "ScriptError", "UnavailableError", "RefusedError"]


class PhantomError(AllocsimError):
    """Base class of the errors of allocsim.phantom."""


class ScriptError(PhantomError, ValueError):
    """An op script contains an unknown or invalid op."""


class UnavailableError(PhantomError):
    """A requirement is missing: a wheel, a compiler, the network or Linux."""


class RefusedError(PhantomError):
    """Real PyTorch refused its settings or ended while it ran a script."""
