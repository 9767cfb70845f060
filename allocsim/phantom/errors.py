"""Errors of allocsim.phantom."""

from allocsim.errors import AllocsimError


class PhantomError(AllocsimError):
    """Base class of the errors of allocsim.phantom."""


class ScriptError(PhantomError, ValueError):
    """Error for an unknown or invalid call in an op script (list of calls for the allocator)."""


class UnavailableError(PhantomError):
    """Error for a missing requirement: a wheel, a compiler, the network or Linux."""


class RefusedError(PhantomError):
    """Error if real PyTorch refuses its allocator settings, or ends during an op script."""
