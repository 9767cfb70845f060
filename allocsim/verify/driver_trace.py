"""Decisions of a real driver, read from a trace: segment addresses and free memory.

Rule: only values that no allocator decides are read.  The address of a new segment comes from its
entry, and the free memory in an error text from the `oom` entry.  Everything else is predicted.
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
    """Trace of a real device, in order; an entry is [action, address, size, stream]."""

    def __init__(self, entries: Sequence[Sequence[Any]]) -> None:
        self._entries = entries

    def dictate(self, allocator: CachingAllocator) -> None:
        """Set the address of the next segment, if the trace has a new one in the next request."""
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
        """Replace the free memory in `oom` entries and texts by the driver's."""
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
    """Yield the indices of texts with an `oom` entry; an absurdly large request has none."""
    apart = ("more than 1EB memory", "preemptively rejected", DriverRefusalError.TEXT)
    return (i for i, text in enumerate(messages) if not any(words in text for words in apart))
