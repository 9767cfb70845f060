"""Changes to an input, as by a fault or an attacker.

A change depends only on a source of choices, so Hypothesis can draw it and a seed can repeat it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

__all__ = ["mutated"]

_TOKENS = (
    *(b"\x80\x04", b"\x95", b"cos\nsystem\n", b"\x93", b"R", b"b", b"\x81", b"\x92", b"i", b"o"),
    *(b"P0\n", b"Q", b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00", b"\x97", b"\x98"),
    *(b"h\x00", b"j\x00\x00\x00\x00", b"q\x00", b"r\xff\xff\xff\x7f", b"\x94", b"0", b"1", b"2"),
    *(b"}\x94(", b"]\x94(", b"u", b"e", b"a", b"s", b"(", b")", b"N", b"\x88", b"\x85", b"\x86"),
    *(b"K\x00", b"M\xff\xff", b"J\xff\xff\xff\xff", b"\x8a\x09" + b"\xff" * 9, b"G" + b"\x7f" * 8),
    *(b"NaN", b"1e999", b"-1", b"9" * 400, b"null", b"[" * 50, b"{", b'"', b"\\u0000", b"\x1b[2J"),
    *(b"\x00", b"\xff" * 4, b"\xff" * 8, b"\x7f" * 8, b"PK\x03\x04", b"\x1f\x8b", b"PK\x05\x06"),
)

Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(source: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of `seeds` with one to eight changes."""
    data = bytearray(source.choice(seeds))
    for _ in range(source.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        source.choice(_CHANGES)(source, data, seeds)
    return bytes(data)


def _place(source: random.Random, data: bytearray) -> int:
    return source.randrange(len(data) + 1)


def _set(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[source.randrange(len(data))] = source.randrange(256)


def _flip(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)


def _insert(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _place(source, data)
    data[at:at] = source.choice(_TOKENS)


def _replace(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at, token = _place(source, data), source.choice(_TOKENS)
    data[at : at + len(token)] = token


def _cut(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _place(source, data)
    del data[at : at + source.randint(1, 64)]


def _end(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if source.random() < 0.25:
        del data[_place(source, data) :]


def _repeat(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at, length = _place(source, data), source.randint(1, 128)
    data[at:at] = data[at : at + length] * source.randint(1, 4)


def _splice(source: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = source.choice(seeds)
    first = source.randrange(len(other) + 1)
    at = _place(source, data)
    data[at : at + source.randint(0, 64)] = other[first : first + source.randint(1, 128)]


_CHANGES: tuple[Change, ...] = (
    *(_set, _set, _flip, _flip, _insert, _replace, _cut, _end, _repeat, _splice),
)
