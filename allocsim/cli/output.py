"""What a command prints, on whatever terminal or pipe there is.

Rule: a character that the output's encoding lacks is written as an escape, never an error.
"""

from __future__ import annotations

import sys

__all__ = ["write"]


def write(text: str) -> None:
    """Write `text` to standard output."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
