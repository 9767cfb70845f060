"""Parse and format sizes; everywhere else a size is an `int` in bytes.

`parse_size` reads user input ("24GiB", "5600 MiB", "512").  `format_size` formats sizes exactly as
PyTorch's error messages do.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "KIB", "MIB", "GIB", "TIB", "round_up", "format_change", "format_range", "format_size",
    "parse_size",
]  # fmt: skip

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

_UNITS = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": TIB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z]{0,3})\s*", re.ASCII)
_WRAP = 1 << 64


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `size`."""
    return -(-size // multiple) * multiple


def format_size(size: int) -> str:
    """Format `size` bytes as PyTorch does: "512 bytes", "2.00 MiB", "1024.00 MiB", "1.50 GiB".

    The limits are inclusive (exactly 1 MiB is "1024.00 KiB").  As in PyTorch, `size` counts as an
    unsigned 64-bit number, so a negative size gives a huge text (semantics.md, section 7.1).

    Mirrors: format_size
    """
    size %= _WRAP
    if size <= KIB:
        return f"{size} bytes"
    if size <= MIB:
        return f"{size / KIB:.2f} KiB"
    if size <= GIB:
        return f"{size / MIB:.2f} MiB"
    return f"{size / GIB:.2f} GiB"


def format_change(size: int) -> str:
    """Format a difference in bytes with its sign: "+2.00 MiB", "-512 bytes", "no change"."""
    return f"{'+' if size > 0 else '-'}{format_size(abs(size))}" if size else "no change"


def format_range(low: int, high: int) -> str:
    """Format `low` and `high` bytes: "1.20 GiB to 1.50 GiB", or one size if the texts are equal."""
    first, second = format_size(low), format_size(high)
    return first if first == second else f"{first} to {second}"


def parse_size(text: str | int) -> int:
    """Parse a size such as "24GiB", "5600 MiB", "1.5g", "512" or an `int`; return bytes.

    KiB, MiB, GiB, TiB and single letters are powers of two; KB, MB, GB, TB are powers of ten.
    Raises ValueError, naming the text, for anything else, negative sizes and fractional bytes.
    """
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"size {text} is negative; expected bytes, 0 or more")
        return text
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"size {text[:80]!r} is not a number with a unit such as 24GiB or 5600MiB")
    from fractions import Fraction  # noqa: PLC0415  (slow; most sizes are integers)

    size = Fraction(match[1]) * unit
    if size.denominator != 1 and unit == 1:
        raise ValueError(f"size {text[:80]!r} is not a whole number of bytes")
    return round(size)
