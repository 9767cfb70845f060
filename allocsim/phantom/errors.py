"""Errors of allocsim.phantom."""

from allocsim.errors import AllocsimError


class PhantomError(AllocsimError):
    """Base class of the errors of allocsim.phantom."""


class ScriptError(PhantomError, ValueError):
    """An op script, a list of calls for the real allocator, has an unknown or invalid call."""


class UnavailableError(PhantomError):
    """A requirement is missing: a wheel, a compiler, the network or Linux."""


class RefusedError(PhantomError):
    """Real PyTorch refused its allocator settings, or ended during an op script (list of calls)."""
