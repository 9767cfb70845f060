"""The errors of the phantom GPU.

Rule: a missing tool, a failed download and a refusal by the real allocator are told apart, so
that a caller can skip a check for the first two and must report the last.
"""

from __future__ import annotations

from allocsim.errors import AllocsimError

__all__ = ["PhantomError", "ScriptError", "UnavailableError", "RefusedError"]


class PhantomError(AllocsimError):
    """The base of what allocsim.phantom raises."""


class ScriptError(PhantomError, ValueError):
    """An op script with an op that no allocator has."""


class UnavailableError(PhantomError):
    """The real allocator is not available: no wheel, no compiler, no network, not Linux."""


class RefusedError(PhantomError):
    """The real allocator refused its settings, or died while running a script."""
