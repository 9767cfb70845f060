"""What one input may take; `docs/security.md` promises it of any."""

__all__ = ["MEMORY", "SECONDS"]

SECONDS = 10
MEMORY = 1 << 30
"""Bytes beyond what the modules take."""
