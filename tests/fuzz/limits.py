"""Limits per input, which `docs/evidence/security.md` promises."""

__all__ = ["MEMORY", "SECONDS"]

SECONDS = 10
MEMORY = 1 << 30
"""Bytes in addition to the memory of the modules."""
