"""Versions of the packages of the interpreter that runs PyTorch."""

from importlib.metadata import PackageNotFoundError, version


def installed(package: str) -> str | None:
    """Return the version of an installed package; None if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
