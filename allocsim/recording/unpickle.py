"""Read a pickle of plain values as Python objects, without executing any code in it.

A pickle is checked before it is unpickled.  It is refused if it has an operation that plain values
do not need, or if its objects would need too much memory for the size of the file.
"""

# The only accepted tuples are pairs of integers (pool ids), since hashing tuples nested a million
# deep would overflow the interpreter's stack. The check takes 0.7 s for a million entries (88 MB):
# one regular expression matches many operations at once, and Python code runs only for texts.

from __future__ import annotations

import mmap
import pickle
import pickletools
import re
from typing import BinaryIO, NoReturn

import numpy as np

from allocsim.errors import RecordingError
from allocsim.units import MIB

_PROTO, _FRAME, _STOP, _PAIR = 0x80, 0x95, 0x2E, 0x86
_SHORT_TEXT, _TEXT = 0x8C, 0x58
_NAMES = {ord(op.code): op.name for op in pickletools.opcodes}
_FIXED = {ord("K"): 1, ord("h"): 1, ord("M"): 2, ord("J"): 4, ord("j"): 4, ord("G"): 8}
_CHUNK = 1 << 22

# Estimated bytes of a container in CPython.  By this estimate real snapshots need 6 to 13 times the
# size of their file.
_DICT_BYTES, _LIST_BYTES, _PLAIN_FACTOR = 300, 100, 8
_MAX_FACTOR = 16
_ALWAYS_ALLOWED = 640 * MIB

_BROKEN = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module_name!a}.{global_name!a}")

    def persistent_load(self, _: object, /) -> NoReturn:
        raise pickle.UnpicklingError("it asks for a persistent object")


def unpickle(path: str, file: BinaryIO) -> object:
    """Return the value pickled in `file`, without executing any code in it.

    path: name of the file, for errors.
    """
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        scan(path, data)
        counts = np.zeros(256, dtype=np.int64)
        view = np.frombuffer(data, dtype=np.uint8)
        try:
            for first in range(0, len(view), _CHUNK):
                counts += np.bincount(view[first : first + _CHUNK], minlength=256)
        finally:
            del view  # a mmap cannot be closed while an array refers to it
    lists = counts[ord("]")] + counts[_PAIR]
    check_density(path, int(counts.sum()), dicts=int(counts[ord("}")]), lists=int(lists))
    file.seek(0)
    try:
        return _PlainUnpickler(file).load()
    except _BROKEN as error:
        reason = ascii(str(error)[:100])[1:-1] or type(error).__name__
        raise RecordingError(path, f"is damaged as a pickle ({reason})") from None


def check_density(path: str, size: int, *, dicts: int, lists: int) -> None:
    """Raise RecordingError if a file would need too much memory for its size.

    size: bytes of the file.
    dicts, lists: numbers of dictionaries and lists that the file creates.
    """
    estimate = dicts * _DICT_BYTES + lists * _LIST_BYTES + size * _PLAIN_FACTOR
    if estimate > max(_ALWAYS_ALLOWED, size * _MAX_FACTOR):
        raise RecordingError(
            path,
            f"would take about {estimate // MIB} MiB as objects, out of proportion to its "
            f"{size} bytes; a recording does not look like this",
        )


def scan(path: str, data: mmap.mmap | bytes) -> None:
    """Raise RecordingError if a pickle has an operation that plain values do not need."""
    size = len(data)
    if data[0] != _PROTO or size < 2 or not 2 <= data[1] <= pickle.HIGHEST_PROTOCOL:
        raise RecordingError(path, "is not a pickle of protocol 2 to 5, expected a snapshot")
    run = _runs(size)
    at = 2
    while True:
        if found := run.match(data, at):
            at = found.end()
        code = data[at] if at < size else None
        if code == _STOP:
            return
        end = at + 1 + _length(data, at)
        if code is None or end > size:
            raise RecordingError(path, f"is cut short: the pickle goes on past byte {size}")
        if code not in (_SHORT_TEXT, _TEXT):
            _refuse(path, code, at)
        at = end


def _length(data: mmap.mmap | bytes, at: int) -> int:
    code = data[at] if at < len(data) else None
    if code in (_SHORT_TEXT, 0x8A):
        return 1 + int.from_bytes(data[at + 1 : at + 2], "little")
    if code == _TEXT:
        return 4 + int.from_bytes(data[at + 1 : at + 5], "little")
    if code == _FRAME:
        return 8 + int.from_bytes(data[at + 1 : at + 9], "little")
    return _FIXED.get(code, 0) if code is not None else 0


def _refuse(path: str, code: int, at: int) -> NoReturn:
    name = _NAMES.get(code)
    what = f"operation {name}" if name else f"byte 0x{code:02x}"
    raise RecordingError(
        path,
        f"holds the pickle {what} at byte {at}, which a recording does not need; refused, and "
        "nothing in it was run",
    )


def _runs(size: int) -> re.Pattern[bytes]:
    # Each memo number needs an operation, so memo numbers are below the file's size; no frame is
    # longer than the file.
    memo, frame = rb"r" + _bounded(size, 4), rb"\x95" + _bounded(size, 8)
    lengths = b"|".join(b"\\x%02x.{%d}" % (n, n) for n in (6, 4, 5, 7, 3, 2, 1, 8, 9, 0))
    integer = rb"(?:K.|J.{4}|M..|\x8a(?:" + lengths + rb"))"
    # A frame may begin between any two operations, even within a pair.
    pair = rb"(?:(?:" + frame + rb")?+" + integer + rb"(?:" + frame + rb")?+\x86)?+"
    return re.compile(
        rb"(?:[()\]}aesuN\x88\x89\x94]++|j.{4}|[hq].|"
        + rb"|".join((integer + pair, rb"G.{8}", memo, frame))
        + rb")++",
        re.DOTALL,
    )


def _bounded(limit: int, width: int) -> bytes:
    # It also matches some integers slightly above `limit`.
    places = (limit >> 8 * place for place in range(width))
    return b"".join(b"[\\x00-\\x%02x]" % top if top < 256 else b"." for top in places)
