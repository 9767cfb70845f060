"""A driver's own doing, taken from a trace: where its memory lies and how much it has left.

Rule: only what no allocator decides is taken.  The base of a new segment comes from the entry
that tells of it, the free memory that an error text prints from the `oom` entry; all else is
still predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from allocsim.core import CachingAllocator
from allocsim.errors import DriverRefusalError
from allocsim.units import format_size

__all__ = ["DriverTrace"]

_NEW_MEMORY = ("segment_alloc", "segment_map")
_ENDS_A_REQUEST = ("alloc", "oom")


class DriverTrace:
    """The trace of a real device: [action, address, size, stream] an entry, in order."""

    def __init__(self, entries: Sequence[Sequence[Any]]) -> None:
        self._entries = entries

    def dictate(self, allocator: CachingAllocator) -> None:
        """Before a request: where the next segment lies, if the trace has a new one next."""
        if not self._entries:
            return
        done = len(allocator.history)
        for action, address, *_ in self._entries[done:]:
            if action in _NEW_MEMORY:
                allocator.device.dictate_address(address)
                return
            if action in _ENDS_A_REQUEST:
                return

    def correct(self, trace: Sequence[list[Any]], messages: list[str]) -> None:
        """Afterwards: free memory in `oom` entries and texts as the driver gave it."""
        texts = _naming_free_memory(messages)
        for ours, expected in zip(trace, self._entries, strict=False):
            if ours[0] != "oom":
                continue
            at = next(texts)
            if expected[0] == "oom":
                old, new = (
                    f"of which {format_size(answer[1])} is free" for answer in (ours, expected)
                )
                messages[at] = messages[at].replace(old, new)
                ours[1] = expected[1]


def _naming_free_memory(messages: Sequence[str]) -> Iterator[int]:
    """The texts that belong to `oom` entries; a request of an exbibyte, say, leaves none."""
    apart = ("more than 1EB memory", "preemptively rejected", DriverRefusalError.TEXT)
    return (i for i, text in enumerate(messages) if not any(words in text for words in apart))
